"""Spent: how long a step took, and how much of that time this rank waited: for others, for data, for saves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from elastic.activity import Doing
from elastic.clock import Clock


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """In seconds. What only an agent's page tells is None without one.

    `own_s` is `seconds` without the waiting for other ranks. `data_s` and `save_s` count from the end of the step
    before, since saves lie between two steps.
    """

    seconds: float
    own_s: float | None
    data_s: float | None
    save_s: float | None


TotalOf = Callable[[Doing], float | None]
"""How long something was done in all."""


class Spent:
    """Asked at the begin and at the end of each step. It keeps nobody that asks, so that nothing outlives its group."""

    def __init__(self, total_s: TotalOf, *, clock: Clock) -> None:
        self._clock = clock
        self._known_s: dict[Doing, float] = {}
        for doing in (Doing.DATA, Doing.SAVE, Doing.FLUSH):
            self._since(doing, total_s)
        self.begin(total_s)

    def begin(self, total_s: TotalOf) -> None:
        """A step begins."""
        self._began_s = self._clock.monotonic_s()
        self._since(Doing.WAITING, total_s)

    def end(self, total_s: TotalOf) -> StepTimes:
        """It is done."""
        seconds, waited_s = self._clock.monotonic_s() - self._began_s, self._since(Doing.WAITING, total_s)
        copied_s, flushed_s = self._since(Doing.SAVE, total_s), self._since(Doing.FLUSH, total_s)
        return StepTimes(
            seconds=seconds,
            own_s=None if waited_s is None else max(0.0, seconds - waited_s),
            data_s=self._since(Doing.DATA, total_s),
            save_s=None if copied_s is None or flushed_s is None else copied_s + flushed_s,
        )

    def _since(self, doing: Doing, total_of: TotalOf) -> float | None:
        """How long it was done since this was asked last."""
        total_s = total_of(doing)
        if total_s is None:
            return None
        before_s, self._known_s[doing] = self._known_s.get(doing, total_s), total_s
        return max(0.0, total_s - before_s)
