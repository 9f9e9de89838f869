"""Reduction: how the gradients of all micro-batches of all ranks become one sum. The plain way; `exact` is another.

A reduction says into which gradients the next micro-batch accumulates, hears of every bucket that a micro-batch has
finished, sends buckets in the order it is told to, and hands out the sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from elastic.distributed.buckets import Bucket, Gradients
from elastic.distributed.group import Collectives, Pending
from elastic.plan.tree import Spread


class Reduction(Protocol):
    """One step: `begin_step`, then for each own micro-batch `begin_slot` and `filled`; `send` all; `finish`."""

    strict: bool
    """Whether a second gradient for one parameter within one micro-batch is a mistake."""

    def begin_step(self, buckets: tuple[Bucket, ...], spread: Spread) -> None:
        """Forget what is left of an earlier step."""
        ...

    def begin_slot(self, slot: int) -> tuple[Gradients, bool]:
        """What the micro-batch of this slot accumulates into; and whether it is to overwrite what is there."""
        ...

    def filled(self, bucket: int) -> None:
        """The present micro-batch adds nothing more to this bucket."""
        ...

    def send(self, bucket: int) -> None:
        """This rank adds nothing more to this bucket. Called once for each, in the same order on all ranks."""
        ...

    def finish(self) -> Gradients:
        """The sums over all ranks. Raises PeerLost."""
        ...


class PlainSum:
    """Everything accumulates into one set of gradients, which is then summed over the ranks."""

    strict = False

    def __init__(self, group: Callable[[], Collectives]) -> None:
        self._group = group
        self._buckets: tuple[Bucket, ...] = ()
        self._gradients = Gradients((), pieces=1)
        self._stale = True
        self._pending: list[Pending] = []

    def begin_step(self, buckets: tuple[Bucket, ...], spread: Spread) -> None:
        """Make new gradients where the parameters have changed."""
        self._pending, self._stale = [], True
        if buckets is not self._buckets:
            self._buckets, self._gradients = buckets, Gradients(buckets, pieces=1)

    def begin_slot(self, slot: int) -> tuple[Gradients, bool]:
        """The same gradients for every slot; the first one overwrites them."""
        stale, self._stale = self._stale, False
        return self._gradients, stale

    def filled(self, bucket: int) -> None:
        """Nothing is added up locally but by accumulation."""

    def send(self, bucket: int) -> None:
        """Begin to sum this bucket over the ranks; zeros where this rank has no slots."""
        if self._stale:
            self._gradients.flats[bucket].zero_()
        self._pending.append(self._group().start_sum(self._gradients.flats[bucket]))

    def finish(self) -> Gradients:
        """Wait for the sums."""
        for pending in self._pending:
            pending.wait()
        self._pending = []
        return self._gradients
