"""Continuity: whether steps use the samples that are next, seen while they come; the audit proves it all.

What it would miss is what no other step tells: a wrong item in a step that is done once. The audit knows the order.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from elastic.events import Restored, StepCommitted

_MOST_KEPT = 10_000
"""Steps whose digest is remembered, to compare with when they are done again: more than lie between two saves."""


@dataclass(frozen=True, kw_only=True)
class Astray:
    """How many samples were used that had been used before, were passed by, or are others than when first used."""

    replayed: int = 0
    missed: int = 0
    changed: int = 0


class Continuity:
    """Of one worker that speaks for all, in the order of what it told."""

    def __init__(self) -> None:
        self._position: int | None = None
        self._steps: OrderedDict[int, tuple[int, int, int]] = OrderedDict()  # by iteration: start, stop, digest

    def restored(self, event: Restored) -> Astray:
        """Whether it goes on where the step that it names left off, as far as that step was seen here."""
        self._position = event.consumed_samples
        known = self._steps.get(event.iteration)
        return Astray() if known is None else _between(known[1], event.consumed_samples)

    def committed(self, event: StepCommitted) -> Astray:
        """Whether a step begins where the one before ended, is whole, and is what it was when it was done before."""
        begin = Astray() if self._position is None else _between(self._position, event.start)
        self._position = event.stop
        if event.skipped:
            self._steps.pop(event.iteration, None)
            return begin
        before = self._steps.get(event.iteration)
        self._steps[event.iteration] = (event.start, event.stop, event.step_digest)
        self._steps.move_to_end(event.iteration)
        if len(self._steps) > _MOST_KEPT:
            self._steps.popitem(last=False)
        span = event.stop - event.start
        whole = _between(event.step_samples, span)
        same_span = before is not None and before[:2] == (event.start, event.stop)
        changed = span if same_span and before is not None and before[2] != event.step_digest else 0
        return Astray(replayed=begin.replayed + whole.replayed, missed=begin.missed + whole.missed, changed=changed)


def _between(due: int, found: int) -> Astray:
    """Going on behind what is due passes samples by, before it uses them again."""
    return Astray(replayed=max(0, due - found), missed=max(0, found - due))
