"""Records: events with who saw them when, as JSON lines in files.

One file for each node under `<save_path>/events/`, appended to by the node's agent and workers with single O_APPEND
writes, so that a line survives the death of its writer and is never torn.
"""

from __future__ import annotations

import dataclasses
import heapq
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastic.events import restores, wishes  # noqa: F401 - their events are among the types below
from elastic.events.kinds import Event, Unknown
from elastic.events.shapes import SHAPES, Shape, moment, text, whole

EVENT_TYPES: dict[str, type[Event]] = {cls.kind: cls for cls in Event.__subclasses__() if cls is not Unknown}


@dataclass(frozen=True, kw_only=True)
class Record:
    """An event and who saw it when. `rank` is None for an agent's own events."""

    time_s: float
    node: str
    rank: int | None
    generation: int
    event: Event


_HEAD = ("time_s", "node", "rank", "generation")


def encode(record: Record) -> str:
    """One line of JSON, without the newline. What was read as Unknown is written as it came."""
    event = record.event
    head = {name: getattr(record, name) for name in _HEAD}
    if isinstance(event, Unknown):
        told = json.dumps(head | {"kind": event.name}, separators=(",", ":"))
        return told if event.fields == "{}" else f"{told[:-1]},{event.fields[1:]}"
    return json.dumps(head | {"kind": event.kind} | dataclasses.asdict(event), separators=(",", ":"), default=str)


def decode(line: str) -> Record:
    """Read one line back. Fields that this version does not know are left out.

    Raises:
        ValueError: the line is no record of any version.
    """
    try:
        raw: dict[str, Any] = json.loads(line)
        time_s, node, rank, generation = (raw.pop(name) for name in _HEAD)
        if whole(generation) < 0 or (rank is not None and whole(rank) < 0):
            raise ValueError("its rank or generation is below 0")
        event = _event(text(raw.pop("kind")), raw)
        return Record(time_s=moment(time_s), node=text(node), rank=rank, generation=generation, event=event)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not an event record: {line[:120]!r} ({error or type(error).__name__})") from error


def _event(name: str, raw: dict[str, Any]) -> Event:
    cls = EVENT_TYPES.get(name)
    if cls is None:
        return _unknown(name, raw, reason="this version has no such kind")
    if missing := [each for each in _REQUIRED[cls] if each not in raw]:
        return _unknown(name, raw, reason=f"it does not tell {', '.join(missing)}")
    fields = {}
    for each, shape in _SHAPES_OF[cls].items():
        if each in raw:
            try:
                fields[each] = shape(raw[each])
            except (ValueError, TypeError, OverflowError):
                return _unknown(name, raw, reason=f"its {each} is {str(raw[each])[:60]!r}")
    return cls(**fields)


def _unknown(name: str, raw: dict[str, Any], *, reason: str) -> Unknown:
    return Unknown(name=name, fields=json.dumps(raw, separators=(",", ":")), reason=reason)


_SHAPES_OF: dict[type[Event], dict[str, Shape]] = {
    cls: {field.name: SHAPES[str(field.type)] for field in dataclasses.fields(cls)} for cls in EVENT_TYPES.values()
}
_REQUIRED: dict[type[Event], tuple[str, ...]] = {
    cls: tuple(field.name for field in dataclasses.fields(cls) if field.default is dataclasses.MISSING)
    for cls in EVENT_TYPES.values()
}


def read_records(directory: Path, *, on_unreadable: Callable[[str], None] | None = None) -> list[Record]:
    """All records of all nodes, by time. A last line still being written is left out.

    Raises:
        ValueError: a line is no record, or a file cannot be read. With `on_unreadable` that is passed over and told.
    """
    records: list[Record] = []
    for path in sorted(directory.glob("*.jsonl")):
        records.extend(_records_of(path, on_unreadable or _refuse, few_steps=False))
    return sorted(records, key=lambda record: record.time_s)


def _refuse(problem: str) -> None:
    raise ValueError(problem)


def merged_records(
    directory: Path, *, on_unreadable: Callable[[str], None], few_steps: bool = False
) -> Iterator[Record]:
    """The same one by one, for runs that do not fit into memory. Each file must be in order, as its writer left it.

    What is no record (as of a disk that was full) and a file that cannot be read are passed over and told to
    `on_unreadable`, so that they do not hide what other nodes say.
    With `few_steps`, of the steps that follow one another in a file only the first and the last are read, and the last
    64 of all: ten times as fast, and enough to know where a run is.
    """
    files = [_records_of(path, on_unreadable, few_steps=few_steps) for path in sorted(directory.glob("*.jsonl"))]
    return heapq.merge(*files, key=lambda record: record.time_s)


def _records_of(path: Path, on_unreadable: Callable[[str], None], *, few_steps: bool) -> Iterator[Record]:
    lines = _lines_of(path, on_unreadable)
    for number, line in few_of(lines) if few_steps else lines:
        try:
            record = decode(line)
        except ValueError as error:
            on_unreadable(f"{path}:{number}: {error}")
            continue
        yield record


def _lines_of(path: Path, on_unreadable: Callable[[str], None]) -> Iterator[tuple[int, str]]:
    """Whole lines with their numbers."""
    if path.exists() and not path.is_file():
        on_unreadable(f"{path}: no file")
        return
    try:
        with path.open(errors="replace") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith("\n") and len(line) > 1:
                    yield number, line
    except OSError as error:
        on_unreadable(f"{path}: {error.strerror}")


_A_STEP = '"kind":"step_committed"'
_LAST_STEPS = 64


def few_of(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Of (number, line) pairs of one file, those that are left when steps between steps are left out."""
    waiting: deque[tuple[int, str]] = deque(maxlen=_LAST_STEPS)
    after_a_step = False
    for line in lines:
        if _A_STEP in line[1] and after_a_step:
            waiting.append(line)
            continue
        if waiting:
            yield waiting[-1]
            waiting.clear()
        after_a_step = _A_STEP in line[1]
        yield line
    yield from waiting
