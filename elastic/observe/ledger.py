"""Ledger: where a run's time went, by state; the parts add up to the time from the first record to the last. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from elastic.events import CheckpointSaved, Record, StepCommitted
from elastic.observe.status import State, StatusFold

REDONE = "steps done again"
STALLED = "waiting for saves"
DOWN = "not running"
PRODUCTIVE = str(State.TRAINING)
_DOWN = {State.FINISHED, State.STOPPED, State.FAILED, State.UNKNOWN, State.LOST}


class Ledger:
    """Books the time between two records to the state that the first of them left the job in.

    Of the time in training, what rank 0 spent on steps that had been done before, or waited for saves, is booked
    apart. A gap in which nobody said anything for long is silence, whatever the state was.
    """

    def __init__(self, status: StatusFold) -> None:
        """`status` must be given each record after this ledger was."""
        self._status = status
        self._last_s: float | None = None
        self._spent_s: dict[str, float] = {}
        self._furthest = 0

    def apply(self, record: Record) -> None:
        """Take one record into account, in the order of their times."""
        gap_s = 0.0 if self._last_s is None else max(0.0, record.time_s - self._last_s)
        self._last_s = record.time_s if self._last_s is None else max(record.time_s, self._last_s)
        state = self._status.state
        silent = gap_s > self._status.patience_s and state not in _DOWN and state is not State.PAUSED
        name = str(State.SILENT) if silent else DOWN if state in _DOWN else str(state)
        self._book(name, gap_s)
        event = record.event
        if isinstance(event, StepCommitted) and record.rank in (0, None):
            if event.iteration <= self._furthest and state is State.TRAINING:
                self._move(REDONE, event.seconds)
            self._furthest = max(self._furthest, event.iteration)
        elif isinstance(event, CheckpointSaved) and record.rank in (0, None):
            self._move(STALLED, event.stall_s)

    def spent_s(self) -> Mapping[str, float]:
        """Seconds by state, the largest first."""
        return dict(sorted(self._spent_s.items(), key=lambda item: -item[1]))

    def _book(self, name: str, seconds: float) -> None:
        if seconds > 0:
            self._spent_s[name] = self._spent_s.get(name, 0.0) + seconds

    def _move(self, name: str, seconds: float) -> None:
        """From training to a part of it that is told apart."""
        there_s = self._spent_s.get(PRODUCTIVE, 0.0)
        moved_s = min(seconds, there_s)
        if moved_s > 0:
            self._spent_s[PRODUCTIVE] = there_s - moved_s
            self._book(name, moved_s)
