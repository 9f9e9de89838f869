"""From a fault to the next committed step: how long it took and how many steps had to be done again."""

from __future__ import annotations

from dataclasses import dataclass, replace

from elastic.events import Cause, Recovered, Restored, StepCommitted
from elastic.metrics.definition import OTHER
from elastic.metrics.definitions import PATHS, STAGES

RUNGS = PATHS[: PATHS.index(OTHER)]
"""How a worker came to its generation: it stayed, it was forked from a ready one, or it is a new Python."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is being recovered from, since when (a Clock's monotonic seconds) and how far the run had come."""

    cause: Cause
    at_s: float
    reached_steps: int
    generation: int
    """The one that ended. Its workers may still commit a step when the end is planned."""


class RecoveryWatch:
    """Follows one node's view of the run. Not thread-safe: its user holds a lock."""

    def __init__(self) -> None:
        self.step = 0
        """The last step that this node saw committed."""
        self.committed_steps = 0
        """How many steps this node saw committed."""
        self._generation = 0
        self._fault: Fault | None = None
        self._restored_steps: int | None = None
        self._path = RUNGS[0]
        self._ends_s: dict[str, float] = {}

    def fault(self, cause: Cause, *, generation: int, now_s: float) -> None:
        """A generation ended. A recovery is counted from the first fault since a newer generation's step."""
        self._restored_steps = None
        self._path = RUNGS[0]
        self._ends_s.clear()
        if self._fault is None:
            self._fault = Fault(cause=cause, at_s=now_s, reached_steps=self.step, generation=generation)

    def reached(self, stage: str, *, now_s: float) -> None:
        """A stage has come to its end, for this node's last worker so far."""
        self._ends_s[stage] = now_s

    def formed(self, *, now_s: float) -> None:
        """The next generation is agreed. How long a paused job rested is no part of its recovery."""
        if self._fault is not None and self._fault.cause is Cause.PAUSED:
            self._fault = replace(self._fault, at_s=now_s)

    def started(self, path: str) -> None:
        """A worker of the next generation was started so. The slowest way is what the recovery took."""
        self._path = max(self._path, path, key=RUNGS.index)

    def restored(self, event: Restored) -> None:
        """Workers stand where a checkpoint put them."""
        self._restored_steps = event.iteration

    def committed(self, event: StepCommitted, *, generation: int, now_s: float) -> Recovered | None:
        """A step is done; the first one of a generation after the fault's ends the recovery."""
        if generation > self._generation:
            self._generation, self.step = generation, event.iteration
            self.committed_steps += 1
        elif generation == self._generation and event.iteration > self.step:
            # Each worker of the node tells, and not in step: the one ahead counts.
            self.step = event.iteration
            self.committed_steps += 1
        fault = self._fault
        if fault is None:
            return None
        if generation <= fault.generation:
            # A planned end: what is committed until then is not lost.
            self._fault = replace(fault, reached_steps=max(fault.reached_steps, event.iteration))
            return None
        self._fault = None
        self._ends_s[STAGES[-1]] = now_s
        back_at = self._restored_steps if self._restored_steps is not None else event.iteration - 1
        return Recovered(
            cause=fault.cause,
            path=self._path,
            seconds=now_s - fault.at_s,
            lost_steps=max(0, fault.reached_steps - back_at),
            stages=self._stages(fault.at_s),
        )

    def _stages(self, begin_s: float) -> tuple[tuple[str, float], ...]:
        found, reached_s = [], begin_s
        for stage in STAGES:
            end_s = self._ends_s.get(stage)
            if end_s is not None:
                found.append((stage, max(0.0, end_s - reached_s)))
                reached_s = max(reached_s, end_s)
        return tuple(found)
