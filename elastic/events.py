"""Events: the one vocabulary of what happened. Metrics, status, report and audit are made from these.

A file of events is JSON lines, one file for each node under `<save_path>/events/`, appended to by the node's agent
and workers with single O_APPEND writes, so that a line survives the death of its writer and is never torn.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol


class Cause(enum.StrEnum):
    """Why a generation ended or a worker was started again."""

    START = "start"
    NODE_LOST = "node_lost"
    NODE_JOINED = "node_joined"
    NODE_LEFT = "node_left"
    WORKER_EXIT = "worker_exit"
    WORKER_SIGNAL = "worker_signal"
    PEER_LOST = "peer_lost"
    GROUP_FAILED = "group_failed"


class Direction(enum.StrEnum):
    """Which way a rescale went."""

    UP = "up"
    DOWN = "down"
    SAME = "same"


class Outcome(enum.StrEnum):
    """How a job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    PREEMPTED = "preempted"


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base: plain data, JSON types only (str, int, float, bool, None, tuples of these)."""

    kind: ClassVar[str] = ""


@dataclass(frozen=True, kw_only=True)
class AgentStarted(Event):
    """An agent is up and looking for its job."""

    kind = "agent_started"
    job_id: str
    agent: str
    endpoint: str
    exporter: str
    version: str
    torch_version: str


@dataclass(frozen=True, kw_only=True)
class RoundOpened(Event):
    """The present generation is over; members come together for the next one."""

    kind = "round_opened"
    cause: Cause
    reason: str


@dataclass(frozen=True, kw_only=True)
class WorldFormed(Event):
    """A generation begins. `seconds` from this agent's joining to the agreed world."""

    kind = "world_formed"
    world_size: int
    nodes: tuple[str, ...]
    cause: Cause
    reason: str
    seconds: float
    leader: bool


@dataclass(frozen=True, kw_only=True)
class Rescaled(Event):
    """The world changed its size or a member of it. Emitted by the leader only."""

    kind = "rescaled"
    direction: Direction
    cause: Cause
    old_world_size: int
    new_world_size: int


@dataclass(frozen=True, kw_only=True)
class NodeLost(Event):
    """The leader evicted a member, or its lease ran out."""

    kind = "node_lost"
    lost: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class WorkerStarted(Event):
    """This node's worker process was started. `path`: how (reexec is a new Python)."""

    kind = "worker_started"
    worker_rank: int
    pid: int
    path: str


@dataclass(frozen=True, kw_only=True)
class WorkerLost(Event):
    """This node's worker ended before its job did."""

    kind = "worker_lost"
    worker_rank: int
    pid: int
    cause: Cause
    reason: str


@dataclass(frozen=True, kw_only=True)
class Recovered(Event):
    """The first step committed after a fault. `seconds` from its detection on this node; leader only."""

    kind = "recovered"
    cause: Cause
    path: str
    seconds: float
    lost_steps: int


@dataclass(frozen=True, kw_only=True)
class JobEnded(Event):
    """This agent's job is over."""

    kind = "job_ended"
    outcome: Outcome
    exit_code: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class GroupReady(Event):
    """The process group of this generation stands. `seconds` it took."""

    kind = "group_ready"
    backend: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Restored(Event):
    """State was restored, or the run begins (`iteration` 0, tier "none")."""

    kind = "restored"
    tier: str
    iteration: int
    consumed_samples: int
    seconds: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class OrderChosen(Event):
    """Which item each global sample number is, from here on. An account needs nobody's data set with it."""

    kind = "order_chosen"
    length: int
    seed: int
    order: str
    order_version: int


@dataclass(frozen=True, kw_only=True)
class StepCommitted(Event):
    """One optimizer step is done on this rank.

    `start`..`stop` is the span of global sample numbers of the whole step; `ranges` are the ones that this rank
    really fetched and used, as (start, stop) pairs; `step_digest` and `step_samples` are sums over all ranks.
    """

    kind = "step_committed"
    iteration: int
    start: int
    stop: int
    ranges: tuple[tuple[int, int], ...]
    step_samples: int
    step_digest: int
    run_digest: int
    loss: float
    world_size: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class CheckpointSaved(Event):
    """An iteration was committed, or (tier "memory") copied; training waited `stall_s`. `skipped`: since the last."""

    kind = "checkpoint_saved"
    iteration: int
    consumed_samples: int
    bytes: int
    seconds: float
    interval_s: float | None
    tier: str = "disk"
    stall_s: float = 0.0
    skipped: int = 0


@dataclass(frozen=True, kw_only=True)
class CheckpointFailed(Event):
    """A save did not become durable. Training goes on; the last good iteration stays."""

    kind = "checkpoint_failed"
    iteration: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class CheckpointRejected(Event):
    """An iteration on disk was passed over while restoring, with the file and what is wrong with it."""

    kind = "checkpoint_rejected"
    iteration: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Fencing(Event):
    """Something of an ended generation was refused. `what`: checkpoint, worker or agent."""

    kind = "fenced"
    what: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Notice(Event):
    """Something a person should read: a step formula that is not exact, an idle rank, a changed setting."""

    kind = "notice"
    text: str


@dataclass(frozen=True, kw_only=True)
class RunFinished(Event):
    """The run reached its last step."""

    kind = "run_finished"
    iteration: int
    consumed_samples: int


EVENT_TYPES: dict[str, type[Event]] = {cls.kind: cls for cls in Event.__subclasses__()}


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
    """One line of JSON, without the newline."""
    head = {name: getattr(record, name) for name in _HEAD} | {"kind": record.event.kind}
    return json.dumps(head | dataclasses.asdict(record.event), separators=(",", ":"), default=str)


def decode(line: str) -> Record | None:
    """Read one line back; None for a kind that this version does not know.

    Raises:
        ValueError: the line is not a record.
    """
    try:
        raw: dict[str, Any] = json.loads(line)
        head = {name: raw.pop(name) for name in _HEAD}
        if (cls := EVENT_TYPES.get(raw.pop("kind"))) is None:
            return None
        known = {field.name: field.type for field in dataclasses.fields(cls)}
        values = {name: _restore(known[name], value) for name, value in raw.items() if name in known}
        return Record(event=cls(**values), **head)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not an event record: {line[:120]!r} ({error})") from error


_ENUMS = {"Cause": Cause, "Direction": Direction, "Outcome": Outcome}


def _restore(type_name: Any, value: Any) -> Any:
    """Give a JSON value the type that its field declares (annotations are strings here)."""
    if type_name in _ENUMS:
        return _ENUMS[type_name](value)
    if isinstance(value, list):
        return tuple(tuple(item) if isinstance(item, list) else item for item in value)
    return value


class Emit(Protocol):
    """Where code that has something to tell is given to tell it."""

    def __call__(self, event: Event) -> None: ...


class EventFile:
    """Appends records to one file, each by one `write`, so that lines of several processes never mix."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def append(self, record: Record) -> None:
        """Write one record. It outlives this process; it is not forced to disk."""
        os.write(self._fd, (encode(record) + "\n").encode())

    def close(self) -> None:
        """Close the file; further appends fail."""
        os.close(self._fd)


def read_records(directory: Path) -> list[Record]:
    """All records of all nodes, by time. A last line still being written is left out."""
    paths = sorted(directory.glob("*.jsonl"))
    return sorted((each for path in paths for each in _complete_records(path)), key=lambda record: record.time_s)


def _complete_records(path: Path) -> Iterator[Record]:
    text = path.read_text()
    for line in text[: text.rfind("\n") + 1].splitlines():
        if line and (record := decode(line)) is not None:
            yield record
