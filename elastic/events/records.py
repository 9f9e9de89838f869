"""Records: events with who saw them when, as JSON lines in files.

One file for each node under `<save_path>/events/`, appended to by the node's agent and workers with single O_APPEND
writes, so that a line survives the death of its writer and is never torn.
"""

from __future__ import annotations

import dataclasses
import heapq
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastic.events import wishes  # noqa: F401 - its event is one of the types below
from elastic.events.causes import Cause, Direction, Outcome
from elastic.events.kinds import Event, Unknown

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
        told = {"kind": event.name} | json.loads(event.fields)
    else:
        told = {"kind": event.kind} | dataclasses.asdict(event)
    return json.dumps(head | told, separators=(",", ":"), default=str)


def decode(line: str) -> Record:
    """Read one line back. Fields that this version does not know are left out.

    Raises:
        ValueError: the line is no record of any version.
    """
    try:
        raw: dict[str, Any] = json.loads(line)
        head = {name: raw.pop(name) for name in _HEAD}
        name = raw.pop("kind")
        return Record(event=_event(name, raw), **head)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not an event record: {line[:120]!r} ({error})") from error


def _event(name: str, raw: dict[str, Any]) -> Event:
    cls = EVENT_TYPES.get(name)
    if cls is None:
        return _unknown(name, raw, reason="this version has no such kind")
    known = {field.name: field for field in dataclasses.fields(cls)}
    missing = [each.name for each in known.values() if each.default is dataclasses.MISSING and each.name not in raw]
    if missing:
        return _unknown(name, raw, reason=f"it does not tell {', '.join(missing)}")
    try:
        return cls(**{each: _restore(known[each].type, value) for each, value in raw.items() if each in known})
    except ValueError as error:
        return _unknown(name, raw, reason=str(error))


def _unknown(name: str, raw: dict[str, Any], *, reason: str) -> Unknown:
    return Unknown(name=name, fields=json.dumps(raw, separators=(",", ":")), reason=reason)


_ENUMS = {"Cause": Cause, "Direction": Direction, "Outcome": Outcome}


def _restore(type_name: Any, value: Any) -> Any:
    """Give a JSON value the type that its field declares (annotations are strings here)."""
    if type_name in _ENUMS:
        return _ENUMS[type_name](value)
    if isinstance(value, list):
        return tuple(tuple(item) if isinstance(item, list) else item for item in value)
    return value


class EventFile:
    """Appends records to one file. Each record is one `write`, so that lines of several processes never mix."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def append(self, record: Record) -> None:
        """Write one record. It outlives this process; it is not forced to disk."""
        self.append_encoded(encode(record))

    def append_encoded(self, line: str) -> None:
        """The same of what `encode` gave."""
        os.write(self._fd, (line + "\n").encode())

    def close(self) -> None:
        """Close the file; further appends fail."""
        os.close(self._fd)


def read_records(directory: Path) -> list[Record]:
    """All records of all nodes, by time. A last line still being written is left out."""
    records: list[Record] = []
    for path in sorted(directory.glob("*.jsonl")):
        records.extend(_complete_records(path))
    return sorted(records, key=lambda record: record.time_s)


def merged_records(
    directory: Path, *, on_unreadable: Callable[[str], None], few_steps: bool = False
) -> Iterator[Record]:
    """The same one by one, for runs that do not fit into memory. Each file must be in order, as its writer left it.

    A line that is no record (as of a disk that was full) is passed over and told to `on_unreadable`.
    With `few_steps`, of the steps that follow one another in a file only the first and the last are read, and the last
    64 of all: ten times as fast, and enough to know where a run is.
    """
    files = [_records_of(path, on_unreadable, few_steps) for path in sorted(directory.glob("*.jsonl"))]
    return heapq.merge(*files, key=lambda record: record.time_s)


def _records_of(path: Path, on_unreadable: Callable[[str], None], few_steps: bool) -> Iterator[Record]:
    with path.open(errors="replace") as file:
        lines = ((number, line) for number, line in enumerate(file, start=1) if line.endswith("\n") and len(line) > 1)
        for number, line in few_of(lines) if few_steps else lines:
            try:
                yield decode(line)
            except ValueError as error:
                on_unreadable(f"{path}:{number}: {error}")


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


def _complete_records(path: Path) -> Iterator[Record]:
    text = path.read_text()
    for line in text[: text.rfind("\n") + 1].splitlines():
        if line:
            yield decode(line)
