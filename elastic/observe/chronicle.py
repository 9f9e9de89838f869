"""Chronicle: all that the report tells of a run, folded from its records in bounded memory. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from elastic import events
from elastic.events import Record
from elastic.observe.curve import Bucket, Curve
from elastic.observe.incidents import Incident, Incidents
from elastic.observe.ledger import PRODUCTIVE, Ledger
from elastic.observe.status import Status, StatusFold

_MOST_KEPT = 200


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Something that happened at a position of the run. `kind`: rescale, recovery or checkpoint."""

    kind: str
    consumed_samples: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Save:
    """One save, or one that failed (then `problem` says why)."""

    at_s: float
    iteration: int
    tier: str
    bytes: int
    seconds: float
    stall_s: float
    problem: str


@dataclass(frozen=True, kw_only=True)
class Chronicled:
    """A run from its first record to its last. Lists hold the last 200; `counts` says how many there were."""

    status: Status
    begin_s: float
    end_s: float
    spent_s: Mapping[str, float]
    loss: tuple[Bucket, ...]
    worlds: tuple[tuple[int, int], ...]
    """(position, world size from there on)."""
    marks: tuple[Mark, ...]
    incidents: tuple[Incident, ...]
    saves: tuple[Save, ...]
    evaluations: tuple[tuple[int, str], ...]
    notices: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]
    counts: Mapping[str, int]

    @property
    def goodput(self) -> float | None:
        """The share of time in steps that counted; None for a run without any."""
        wall_s = sum(self.spent_s.values())
        return self.spent_s.get(PRODUCTIVE, 0.0) / wall_s if wall_s else None


class Chronicle:
    """Takes records in the order of their times, then tells."""

    def __init__(self) -> None:
        self._status = StatusFold()
        self._ledger = Ledger(self._status)
        self._incidents = Incidents()
        self._loss = Curve()
        self._worlds: deque[tuple[int, int]] = deque(maxlen=2 * _MOST_KEPT)
        self._marks: dict[str, deque[Mark]] = {}
        self._saves: deque[Save] = deque(maxlen=_MOST_KEPT)
        self._evaluations: deque[tuple[int, str]] = deque(maxlen=_MOST_KEPT)
        self._notices: dict[str, None] = {}
        self._versions: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._begin_s: float | None = None
        self._end_s = 0.0
        self._position = 0

    def apply(self, record: Record) -> None:
        """Take one record into account."""
        self._begin_s = record.time_s if self._begin_s is None else min(self._begin_s, record.time_s)
        self._end_s = max(self._end_s, record.time_s)
        self._ledger.apply(record)
        self._status.apply(record)
        self._incidents.apply(record)
        self._keep(record)

    def tell(self, *, goal_samples: int | None = None) -> Chronicled:
        """All of it, as it stood at the last record."""
        incidents = self._incidents.found
        return Chronicled(
            status=self._status.status(now_s=self._end_s, goal_samples=goal_samples),
            begin_s=self._begin_s or 0.0,
            end_s=self._end_s,
            spent_s=self._ledger.spent_s(),
            loss=self._loss.buckets,
            worlds=tuple(self._worlds),
            marks=tuple(mark for kind in sorted(self._marks) for mark in self._marks[kind]),
            incidents=incidents[-_MOST_KEPT:],
            saves=tuple(self._saves),
            evaluations=tuple(self._evaluations),
            notices=tuple(self._notices),
            versions=tuple(sorted(self._versions.items())),
            counts={**self._counts, "incidents": len(incidents)},
        )

    def _count(self, name: str) -> None:
        self._counts[name] = self._counts.get(name, 0) + 1

    def _mark(self, kind: str, text: str) -> None:
        self._count(kind)
        kept = self._marks.setdefault(kind, deque(maxlen=_MOST_KEPT))
        kept.append(Mark(kind=kind, consumed_samples=self._position, text=text))

    def _keep(self, record: Record) -> None:
        event = record.event
        speaks = record.rank in (0, None)
        match event:
            case events.StepCommitted() if speaks:
                self._step(event)
            case events.Restored() if speaks:
                self._position = event.consumed_samples
                self._loss.back_to(event.consumed_samples)
                while self._worlds and self._worlds[-1][0] > event.consumed_samples:
                    self._worlds.pop()
            case events.Rescaled():
                self._mark("rescale", f"{event.old_world_size} -> {event.new_world_size} ({event.cause})")
            case events.Recovered():
                again = f"{event.lost_steps} steps again"
                self._mark("recovery", f"{event.cause}: {event.seconds:.2f} s by {event.path}, {again}")
            case events.CheckpointSaved() | events.CheckpointFailed() if speaks:
                self._save(record, event)
            case events.Evaluated():
                told = ", ".join(f"{name} {value:.6g}" for name, value in event.values)
                self._evaluations.append((event.iteration, told))
            case events.Notice() if len(self._notices) < _MOST_KEPT:
                self._notices[event.text] = None
            case events.AgentStarted():
                self._versions[record.node] = f"elastic {event.version}, torch {event.torch_version}"
            case events.CheckpointRejected() | events.Fencing() | events.StorageRetried():
                self._count(event.kind)
            case events.ReplicasDiffered() | events.WorkerHung():
                self._count(event.kind)

    def _step(self, event: events.StepCommitted) -> None:
        self._position = event.stop
        self._count("steps")
        if not event.skipped:
            self._loss.add(event.stop, event.loss)
        if not self._worlds or self._worlds[-1][1] != event.world_size:
            self._worlds.append((event.start, event.world_size))

    def _save(self, record: Record, event: events.CheckpointSaved | events.CheckpointFailed) -> None:
        if isinstance(event, events.CheckpointFailed) and event.tier != "disk":
            self._count(f"failed copies: {event.tier}")
            return
        if isinstance(event, events.CheckpointFailed):
            self._count("failed saves")
            self._saves.append(_failed(record.time_s, event))
            return
        self._count(f"saves: {event.tier}")
        if event.tier != "disk":
            return
        self._mark("checkpoint", f"step {event.iteration} saved")
        self._saves.append(
            Save(
                at_s=record.time_s,
                iteration=event.iteration,
                tier=event.tier,
                bytes=event.bytes,
                seconds=event.seconds,
                stall_s=event.stall_s,
                problem="",
            )
        )


def _failed(at_s: float, event: events.CheckpointFailed) -> Save:
    return Save(
        at_s=at_s, iteration=event.iteration, tier="disk", bytes=0, seconds=0.0, stall_s=0.0, problem=event.reason
    )


def chronicle(records: Iterable[Record], *, goal_samples: int | None = None) -> Chronicled:
    """All records of a run, in the order of their times."""
    found = Chronicle()
    for record in records:
        found.apply(record)
    return found.tell(goal_samples=goal_samples)
