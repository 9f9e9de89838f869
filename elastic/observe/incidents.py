"""Incidents: each way from a fault, or from the start, to the next step, stage by stage. Pure.

A stage ends when the last node has told its end, since all wait for the slowest. Where another fault comes in between,
the incident goes on, and the stages are those of the generation that made it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from elastic import events
from elastic.events import Event, Record

STAGES = ("agree", "start workers", "form the group", "restore", "first step")
_ENDS_STAGE: tuple[tuple[type[Event], str], ...] = (
    (events.WorldFormed, "agree"),
    (events.WorkerStarted, "start workers"),
    (events.WorkerStayed, "start workers"),
    (events.GroupReady, "form the group"),
    (events.Restored, "restore"),
    (events.StepCommitted, "first step"),
)
_BEGINS = (events.WorkerLost, events.RoundOpened, events.NodeLost)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of an incident, in seconds from its begin."""

    name: str
    start_s: float
    stop_s: float


@dataclass(frozen=True, kw_only=True)
class Incident:
    """From the first sign of a fault to the first step after it. `path` is "" where no leader told of a recovery."""

    begin_s: float
    generation: int
    cause: str
    reason: str
    path: str
    lost_steps: int
    seconds: float
    world_size: int
    stages: tuple[Stage, ...]
    arrived: tuple[tuple[str, int, float], ...] = ()
    """The state that came to workers of its last generation, as (tier, bytes, seconds), of all of them together."""


@dataclass(kw_only=True)
class _Open:
    begin_s: float
    cause: str
    reason: str
    generation: int = 0
    world_size: int = 0
    ends_s: dict[str, float] = field(default_factory=dict)
    arrived: dict[str, tuple[int, float]] = field(default_factory=dict)

    def come(self, event: events.Restored) -> None:
        for tier, size_bytes, seconds in event.arrived:
            before_bytes, before_s = self.arrived.get(tier, (0, 0.0))
            self.arrived[tier] = before_bytes + size_bytes, before_s + seconds


class Incidents:
    """Takes records in the order of their times."""

    def __init__(self) -> None:
        self._open: _Open | None = None
        self._found: list[Incident] = []
        self._stepped = 0

    @property
    def found(self) -> tuple[Incident, ...]:
        """Those that came to their end, in order."""
        return tuple(self._found)

    def apply(self, record: Record) -> None:
        """Take one record into account."""
        event = record.event
        if isinstance(event, events.Recovered):
            self._name(record, event)
        if self._open is None and isinstance(event, _BEGINS) and record.generation >= self._stepped:
            cause = events.Cause.NODE_LOST if isinstance(event, events.NodeLost) else event.cause
            self._open = _Open(begin_s=record.time_s, cause=cause, reason=event.reason)
        elif self._open is None and isinstance(event, events.AgentStarted) and not self._stepped:
            self._open = _Open(begin_s=record.time_s, cause=events.Cause.START, reason="the job starts")
        elif self._open is None and isinstance(event, events.WorldFormed) and record.generation > self._stepped:
            self._open = _Open(begin_s=record.time_s - event.seconds, cause=event.cause, reason=event.reason)
        if self._open is not None:
            self._advance(self._open, record)
        if isinstance(event, events.StepCommitted):
            self._stepped = max(self._stepped, record.generation)

    def _advance(self, incident: _Open, record: Record) -> None:
        stage = next((name for kind, name in _ENDS_STAGE if isinstance(record.event, kind)), None)
        if stage is None or record.generation <= self._stepped:
            return  # The last words of the generation that is over.
        if record.generation > incident.generation:
            incident.generation = record.generation
            incident.ends_s.clear()
            incident.arrived.clear()
            if isinstance(record.event, events.WorldFormed) and record.event.cause is events.Cause.PAUSED:
                incident.begin_s = record.time_s  # How long the job rested is no part of it.
        if record.generation < incident.generation:
            return
        incident.ends_s[stage] = record.time_s
        if isinstance(record.event, events.Restored):
            incident.come(record.event)
        if isinstance(record.event, events.WorldFormed):
            incident.world_size = record.event.world_size
        if isinstance(record.event, events.StepCommitted):
            self._found.append(_closed(incident, at_s=record.time_s))
            self._open = None

    def _name(self, record: Record, event: events.Recovered) -> None:
        """The leader's word comes after the step; it knows the way taken and what was lost."""
        for at in range(len(self._found) - 1, -1, -1):
            if self._found[at].generation == record.generation:
                told = {"path": event.path, "lost_steps": event.lost_steps}
                self._found[at] = Incident(**(vars(self._found[at]) | told))
                return


def _closed(incident: _Open, *, at_s: float) -> Incident:
    stages = []
    reached_s = 0.0
    for name in STAGES:
        if name in incident.ends_s:
            stop_s = max(reached_s, incident.ends_s[name] - incident.begin_s)
            stages.append(Stage(name=name, start_s=reached_s, stop_s=stop_s))
            reached_s = stop_s
    return Incident(
        begin_s=incident.begin_s,
        generation=incident.generation,
        cause=incident.cause,
        reason=incident.reason,
        path="",
        lost_steps=0,
        seconds=at_s - incident.begin_s,
        world_size=incident.world_size,
        stages=tuple(stages),
        arrived=tuple((tier, *each) for tier, each in sorted(incident.arrived.items())),
    )
