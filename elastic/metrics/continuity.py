"""Continuity: whether a node's steps use the samples that are next, seen while they come; the audit proves it all.

What it would miss is what no other step tells: a wrong item in a step that is done once. The audit knows the order.
"""

from __future__ import annotations

from collections import OrderedDict

from elastic.events import Restored, StepCommitted

_MOST_KEPT = 10_000
"""Steps whose digest is remembered, to compare with when they are done again: more than lie between two saves."""


class Continuity:
    """Of the workers of one node, in the order of what each of them told."""

    def __init__(self) -> None:
        self._reached: dict[int, int] = {}  # by rank: the sample that comes next
        self._steps: OrderedDict[int, tuple[int, int, int]] = OrderedDict()  # by iteration: start, stop, digest

    def restored(self, rank: int, event: Restored) -> bool:
        """Whether a worker goes on where the step that it names left off, as far as that step was seen here."""
        self._reached[rank] = event.consumed_samples
        known = self._steps.get(event.iteration)
        return known is None or known[1] == event.consumed_samples

    def committed(self, rank: int, event: StepCommitted) -> bool:
        """Whether a step begins where the one before ended, is whole, and is what it was when it was done before."""
        reached = self._reached.get(rank, event.start)
        self._reached[rank] = event.stop
        follows = event.start == reached
        if event.skipped:
            self._steps.pop(event.iteration, None)
            return follows
        before = self._steps.get(event.iteration)
        self._steps[event.iteration] = (event.start, event.stop, event.step_digest)
        self._steps.move_to_end(event.iteration)
        if len(self._steps) > _MOST_KEPT:
            self._steps.popitem(last=False)
        whole = event.step_samples == event.stop - event.start
        again = before is None or before[:2] != (event.start, event.stop) or before[2] == event.step_digest
        return follows and whole and again
