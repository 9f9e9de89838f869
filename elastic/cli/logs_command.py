"""`elastic logs`: what the nodes' agents and workers have written, of all nodes whose files this machine can read."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from elastic.cli.console import complain, say
from elastic.clock import SYSTEM_CLOCK, Clock
from elastic.errors import ExitCode, UsageError
from elastic.observe.logs import LogFile, LogLine, files_in, line_of, shown

_LOOK_S = 0.3


def register(commands: Any) -> None:
    """Add the command to argparse's subparsers (whose class argparse keeps private)."""
    parser = commands.add_parser("logs", allow_abbrev=False, help="what agents and workers have written, on all nodes")
    parser.add_argument("save_path", help="the run's checkpoint.save_path")
    parser.add_argument("--log-dir", metavar="DIR", help="also what torchrun was told to write there (--log-dir)")
    parser.add_argument("-f", "--follow", action="store_true", help="go on as lines come, until interrupted")
    parser.add_argument("-n", "--lines", type=int, metavar="N", help="begin with the last N lines only")
    parser.add_argument("--node", help="only this node's")
    parser.add_argument("--rank", type=int, help="only this rank's")
    parser.add_argument("--json", action="store_true", help="print a JSON object a line")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, rest: Sequence[str]) -> ExitCode:
    """Print the lines."""
    if rest:
        raise UsageError(f"unexpected arguments: {' '.join(rest)}")
    if args.lines is not None and args.lines < 0:
        raise UsageError(f"--lines is {args.lines}; it must be 0 or more")
    reader = Reader(_directories(args))
    if not reader.files() and not args.follow:
        places = " nor ".join(str(place) for place in reader.directories)
        raise UsageError(f"there is no log file in {places}; name torchrun's --log-dir, or look at `elastic events`")
    lines: Sequence[LogLine] = [line for line in reader.read() if _wanted(args, line)]
    for line in lines if args.lines is None else deque(lines, maxlen=args.lines):
        _tell(args, line)
    if args.follow:
        follow(reader, tell=lambda line: _tell(args, line) if _wanted(args, line) else None, clock=SYSTEM_CLOCK)
    return ExitCode.DONE


def follow(reader: Reader, *, tell: Callable[[LogLine], None], clock: Clock) -> None:
    """Until interrupted. Files may lie on a network's disk, which tells nobody that they have grown."""
    while True:
        clock.sleep(_LOOK_S)
        for line in reader.read():
            tell(line)


class Reader:
    """Reads each line of each file once, also where files grow, are rotated or are new."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self.directories = directories
        self._read_bytes: dict[tuple[int, int], int] = {}
        """By device and inode: a file that is renamed goes on."""
        self._unread: set[Path] = set()

    def files(self) -> list[LogFile]:
        """Those that there are now."""
        return [file for directory in self.directories for file in files_in(directory)]

    def read(self) -> list[LogLine]:
        """What is new: by time where lines tell it, else file after file."""
        lines: list[LogLine] = []
        for file in self.files():
            try:
                lines.extend(self._new_of(file))
            except FileNotFoundError:
                continue  # Rotated away just now: it is found under its other name next time.
            except OSError as error:  # One node's file must not hide what the others say.
                if file.path not in self._unread:
                    complain(f"{file.path} cannot be read, passed over: {error.strerror}")
                self._unread.add(file.path)
        return sorted(lines, key=lambda line: line.time_s or 0.0)

    def _new_of(self, file: LogFile) -> Iterator[LogLine]:
        with file.path.open("rb") as opened:
            stat = os.fstat(opened.fileno())
            key = (stat.st_dev, stat.st_ino)
            begin = self._read_bytes.get(key, 0)
            opened.seek(begin if begin <= stat.st_size else 0)
            data = opened.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read_bytes[key] = opened.tell() - len(data) + len(whole)
        for raw in whole.decode(errors="replace").split("\n")[:-1]:
            yield line_of(raw, file=file)


def _directories(args: argparse.Namespace) -> list[Path]:
    from elastic.checkpoint.locating import local_dir

    own = Path(local_dir(args.save_path)) / "logs"
    return [own, Path(args.log_dir)] if args.log_dir else [own]


def _wanted(args: argparse.Namespace, line: LogLine) -> bool:
    return args.node in (None, line.node) and (args.rank is None or args.rank in line.ranks)


def _tell(args: argparse.Namespace, line: LogLine) -> None:
    if args.json:
        say(json.dumps(dataclasses.asdict(line)))
        return
    at = "" if line.time_s is None else f"{datetime.fromtimestamp(line.time_s, tz=UTC):%H:%M:%S} "
    say(at + shown(line))
