"""Watching: a run as `elastic top` shows it, folded from its records: status, latest losses and events. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime

from elastic.events import Record, StepCommitted
from elastic.observe.status import Status, StatusFold
from elastic.observe.words import head, is_routine, sentence

_LOSSES = 400
_EVENTS = 200


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A run at one moment. `losses` of the latest steps and `events` in words, both oldest first.

    `told` counts all events that were ever among them, so that a screen knows which are new.
    """

    status: Status
    losses: tuple[float, ...]
    events: tuple[str, ...]
    told: int


class Watching:
    """Takes records one by one, in the order of their times."""

    def __init__(self) -> None:
        self._status = StatusFold()
        self._losses: deque[float] = deque(maxlen=_LOSSES)
        self._events: deque[str] = deque(maxlen=_EVENTS)
        self._told = 0

    def apply(self, record: Record) -> None:
        """Take one record into account."""
        self._status.apply(record)
        event = record.event
        if isinstance(event, StepCommitted) and record.rank in (0, None) and not event.skipped:
            self._losses.append(event.loss)
        if not is_routine(event):
            at = datetime.fromtimestamp(record.time_s, tz=UTC)
            self._events.append(f"{at:%H:%M:%S}  {head(record)}  {sentence(event)}")
            self._told += 1

    def watched(self, *, now_s: float, goal_samples: int | None) -> Watched:
        """The run now."""
        return Watched(
            status=self._status.status(now_s=now_s, goal_samples=goal_samples),
            losses=tuple(self._losses),
            events=tuple(self._events),
            told=self._told,
        )
