"""Pace: how fast samples are used, and when the run will be done at that. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from elastic.events import StepCommitted

_STEPS_MEASURED = 50
_STEPS_ENOUGH = 5


@dataclass(frozen=True, kw_only=True)
class _Seen:
    time_s: float
    stop: int
    seconds: float


class Pace:
    """Samples a second at the present world size.

    Right after a rescale, while too few steps were seen, the rate before it counts in proportion to the workers: the
    global batch stays what it is and is only shared out anew.
    """

    def __init__(self) -> None:
        self._seen: deque[_Seen] = deque(maxlen=_STEPS_MEASURED)
        self._world_size = 0
        self._of_a_worker: float | None = None

    def interrupted(self) -> None:
        """The next steps belong to another generation."""
        rate = self._measured()
        if rate is not None and self._world_size:
            self._of_a_worker = rate / self._world_size
        self._seen.clear()

    def stepped(self, event: StepCommitted, *, time_s: float) -> None:
        """Rank 0 committed a step."""
        self._world_size = event.world_size
        self._seen.append(_Seen(time_s=time_s, stop=event.stop, seconds=event.seconds))

    def samples_per_s(self, world_size: int) -> float | None:
        """None before anything was measured."""
        rate = self._measured()
        if rate is not None:
            return rate
        return None if self._of_a_worker is None else self._of_a_worker * world_size

    def step_s(self) -> float | None:
        """Mean time of a step; saves between steps are not in it."""
        return sum(each.seconds for each in self._seen) / len(self._seen) if self._seen else None

    def _measured(self) -> float | None:
        if len(self._seen) < _STEPS_ENOUGH:
            return None
        first, last = self._seen[0], self._seen[-1]
        spent_s = last.time_s - first.time_s
        return (last.stop - first.stop) / spent_s if spent_s > 0 else None
