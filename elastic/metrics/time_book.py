"""Time book: where a job's time goes, by state; the parts add up to all the time there was, and never shrink. Pure.

Training is booked as productive while it goes on, since a scrape must not wait for a step's end. What turns out to have
been something else (waiting for data, a step that was lost) is *owed*: the next productive time goes to it instead.
So every part only grows, and all are right once training has gone on for as long as was owed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from elastic import events
from elastic.events import Record

PRODUCTIVE, RECOMPUTE, DATA_WAIT, STALL, HANG = "productive", "recompute", "data_wait", "checkpoint_stall", "hang"
DOWN = "down"


class Phase(enum.IntEnum):
    """What a job does, seen from one node. Within a generation it only goes up, but for the last two."""

    DOWN = 0
    WAITING = 1
    RENDEZVOUS = 2
    STARTUP = 3
    RESTORE = 4
    FIRST_STEP = 5
    TRAINING = 6
    IDLE = 7
    PAUSED = 8


_NAMES = {phase: phase.name.lower() for phase in Phase}


class TimeBook:
    """Takes the events of an agent and of one of its workers as they come. Times are of one clock, in seconds."""

    def __init__(self, add: Callable[[str, float], None]) -> None:
        """`add` is told how many seconds more a state has."""
        self._add = add
        self._phase: Phase | None = None
        self._booked_until_s = 0.0
        self._generation = 0
        self._iteration = 0
        self.furthest = 0
        """The last step that was ever committed: what is done up to there is done again."""
        self._open_s = 0.0  # productive time since the last committed step
        self._lost_s = 0.0  # of it, what the end of the generation made worthless
        self._owed_s: dict[str, float] = {}

    @property
    def state(self) -> str:
        """What time is booked to now; "" before the first event."""
        if self._phase is None:
            return ""
        if self._phase is not Phase.TRAINING:
            return _NAMES[self._phase]
        return RECOMPUTE if self._iteration < self.furthest else PRODUCTIVE

    @property
    def owed_s(self) -> float:
        """How much of the productive time so far will be made good for other states."""
        return sum(self._owed_s.values())

    def book(self, now_s: float) -> None:
        """Everything until now is booked."""
        passed_s = max(0.0, now_s - self._booked_until_s)
        self._booked_until_s = max(self._booked_until_s, now_s)
        state = self.state
        if not state:
            return
        if state != PRODUCTIVE:
            self._add(state, passed_s)
            return
        self._open_s += passed_s
        for name, owed_s in list(self._owed_s.items()):
            paid_s = min(owed_s, passed_s)
            passed_s -= paid_s
            self._owed_s[name] = owed_s - paid_s
            self._add(name, paid_s)
        self._add(PRODUCTIVE, passed_s)

    def adopt(self, *, state: str, gap_s: float, furthest: int, patience_s: float) -> None:
        """Go on from another agent's book, which was true `gap_s` ago. A long gap means that nobody was there."""
        known = state in _NAMES.values() or state in (PRODUCTIVE, RECOMPUTE)
        self._add(state if known and gap_s <= patience_s else DOWN, max(0.0, gap_s))
        self.furthest = max(self.furthest, furthest)

    def ended(self, now_s: float) -> None:
        """The generation is over: the step that was under way is lost."""
        self._enter(Phase.RENDEZVOUS, now_s)

    def apply(self, record: Record, *, now_s: float) -> None:
        """One event of this node, or one that the leader tells of the job."""
        match record.event:
            case events.AgentStarted():
                self._enter(Phase.RENDEZVOUS, now_s)
            case events.NodesAwaited():
                self._enter(Phase.WAITING, now_s)
            case events.RoundOpened(cause=events.Cause.PAUSED):
                self._enter(Phase.PAUSED, now_s)
            case events.RoundOpened() | events.NodeLost() if self._phase in (Phase.TRAINING, Phase.FIRST_STEP):
                self._enter(Phase.RENDEZVOUS, now_s)
            case events.WorldFormed():
                self._enter(Phase.STARTUP, now_s)
                self._generation, self._lost_s = record.generation, 0.0
            case events.GroupReady():
                self._advance(Phase.RESTORE, record, now_s)
            case events.Restored() as event:
                self._advance(Phase.FIRST_STEP, record, now_s)
                self._iteration = event.iteration
            case events.StepCommitted() as event:
                self._step(event, record, now_s)
            case events.WorkerHung() as event:
                self.book(now_s)
                self._owe(HANG, event.seconds)
            case events.RunFinished() | events.JobEnded():
                self._enter(Phase.IDLE, now_s)

    def _step(self, event: events.StepCommitted, record: Record, now_s: float) -> None:
        if record.generation < self._generation:
            return  # the last words of what is over
        self.book(now_s)
        self._owe(DATA_WAIT, event.data_s or 0.0)
        self._owe(STALL, event.save_s or 0.0)
        self._open_s, self._iteration = 0.0, event.iteration
        if self._lost_s and self._phase in (
            Phase.RENDEZVOUS,
            Phase.PAUSED,
        ):  # A planned end: the step was finished after all.
            self._owed_s[RECOMPUTE] = max(0.0, self._owed_s.get(RECOMPUTE, 0.0) - self._lost_s)
            self._lost_s = 0.0
        self._advance(Phase.TRAINING, record, now_s)
        self.furthest = max(self.furthest, event.iteration)

    def _advance(self, phase: Phase, record: Record, now_s: float) -> None:
        within = Phase.STARTUP <= (self._phase or Phase.DOWN) < phase
        if within and record.generation == self._generation:
            self._enter(phase, now_s)

    def _enter(self, phase: Phase, now_s: float) -> None:
        if self._phase is None:
            self._booked_until_s = now_s
        self.book(now_s)
        if self._phase is Phase.TRAINING and phase is not Phase.IDLE:
            self._lost_s = self._owe(RECOMPUTE, self._open_s)
        self._phase = phase

    def _owe(self, state: str, seconds: float) -> float:
        """Of the productive time since the last step, so much was something else."""
        owed_s = min(seconds, self._open_s)
        self._open_s -= owed_s
        self._owed_s[state] = self._owed_s.get(state, 0.0) + owed_s
        return owed_s
