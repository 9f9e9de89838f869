"""Logs: the lines of all nodes' log files in one form, with whose they are. Rendering and following are apart.

A run's own log files are JSON lines under `SAVE_PATH/logs`, as the agents keep them: time_s, node, ranks, generation,
stream, text. Any other file is plain text; of torchrun's `--log-dir` the path says attempt, local rank and stream.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from elastic.events.shapes import moment
from elastic.observe.words import plain

_TORCHRUN = re.compile(r"(?:^|/)([^/]+)/attempt_(\d+)/(\d+)/(stdout|stderr)\.log$")
_LOG = re.compile(r"(?:\.(?P<older>\d+))?\.jsonl$|\.log(?:\.(?P<oldest>\d+))?$")


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One line. `ranks`: the workers that said it, none: the agent, or it is not known. `time_s` None: not told."""

    node: str
    ranks: tuple[int, ...]
    stream: str
    text: str
    generation: int = 0
    time_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class LogFile:
    """A file, and whose lines it holds where they do not say so themselves."""

    path: Path
    node: str
    ranks: tuple[int, ...] = ()
    stream: str = ""


def files_in(directory: Path) -> list[LogFile]:
    """All log files below a directory, the older ones first where they were rotated."""
    found = [path for path in directory.rglob("*") if _LOG.search(path.name) and path.is_file()]
    return [whose(path, directory=directory) for path in sorted(found, key=_age)]


def whose(path: Path, *, directory: Path) -> LogFile:
    """What the name of a file says."""
    told = _TORCHRUN.search(str(path))
    if told is not None:
        return LogFile(path=path, node=told[1], ranks=(int(told[3]),), stream=told[4])
    return LogFile(path=path, node=_LOG.sub("", str(path.relative_to(directory))))


def line_of(raw: str, *, file: LogFile) -> LogLine:
    """A line as it stands in a file; one that is no record of ours is text."""
    text = raw.rstrip("\r\n")
    if text.startswith("{"):
        try:
            told = json.loads(text)
            return LogLine(
                node=str(told["node"]),
                ranks=tuple(int(rank) for rank in told["ranks"]),
                stream=str(told["stream"]),
                text=str(told["text"]),
                generation=int(told.get("generation", 0)),
                time_s=moment(told["time_s"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            pass  # Some program's own JSON.
    return LogLine(node=file.node, ranks=file.ranks, stream=file.stream, text=text)


def shown(line: LogLine) -> str:
    """The line with its prefix, harmless on a terminal."""
    ranks = f" r{spans(line.ranks)}" if line.ranks else ""
    return f"[{plain(line.node)}{ranks}] {plain(line.text)}"


def spans(ranks: Sequence[int]) -> str:
    """Ranks in few signs: 0-3,6."""
    found: list[list[int]] = []
    for rank in sorted(ranks):
        if found and rank == found[-1][1] + 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def _age(path: Path) -> tuple[str, int]:
    """Rotated files bear a number, the oldest the highest."""
    told = _LOG.search(path.name)
    number = (told["older"] or told["oldest"] or "0") if told else "0"
    return (_LOG.sub("", str(path)), -int(number))
