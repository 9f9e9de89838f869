"""Logs: the lines of all nodes' log files in one form, with whose they are. Rendering and following are apart.

A run's own log files are JSON lines under `SAVE_PATH/logs`: time_s, node, rank, stream, text, and count where a line
stands for several. Any other file is plain text; of torchrun's `--log-dir` the path says attempt, rank and stream.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from elastic.observe.words import plain

_TORCHRUN = re.compile(r"(?:^|/)([^/]+)/attempt_(\d+)/(\d+)/(stdout|stderr)\.log$")
_ROTATED = re.compile(r"\.(log|jsonl)(\.\d+)?$")


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One line. `time_s` is None where the file does not tell; `rank` None: the agent's, or not known."""

    node: str
    rank: int | None
    stream: str
    text: str
    time_s: float | None = None
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class LogFile:
    """A file, and whose lines it holds where they do not say so themselves."""

    path: Path
    node: str
    rank: int | None = None
    stream: str = ""


def files_in(directory: Path) -> list[LogFile]:
    """All log files below a directory, the older ones first where they were rotated."""
    found = [path for path in directory.rglob("*") if _ROTATED.search(path.name) and path.is_file()]
    return [whose(path, directory=directory) for path in sorted(found, key=_age)]


def whose(path: Path, *, directory: Path) -> LogFile:
    """What the name of a file says."""
    told = _TORCHRUN.search(str(path))
    if told is not None:
        return LogFile(path=path, node=told[1], rank=int(told[3]), stream=told[4])
    return LogFile(path=path, node=_ROTATED.sub("", str(path.relative_to(directory))))


def line_of(raw: str, *, file: LogFile) -> LogLine:
    """A line as it stands in a file; one that is no record of ours is text."""
    text = raw.rstrip("\r\n")
    if text.startswith("{"):
        try:
            told = json.loads(text)
            return LogLine(
                node=str(told["node"]),
                rank=None if told.get("rank") is None else int(told["rank"]),
                stream=str(told.get("stream", "")),
                text=str(told["text"]),
                time_s=float(told["time_s"]),
                count=int(told.get("count", 1)),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            pass  # Some program's own JSON.
    return LogLine(node=file.node, rank=file.rank, stream=file.stream, text=text)


def shown(line: LogLine) -> str:
    """The line with its prefix, harmless on a terminal."""
    rank = "" if line.rank is None else f" {line.rank}"
    again = f"  (x{line.count})" if line.count > 1 else ""
    return f"[{plain(line.node)}{rank}] {plain(line.text)}{again}"


def _age(path: Path) -> tuple[str, int]:
    """Rotated files end in .1, .2, …, the oldest in the highest number."""
    stem, _, number = path.name.rpartition(".")
    rotated = number.isdecimal()
    return (str(path.parent / (stem if rotated else path.name)), -int(number) if rotated else 0)
