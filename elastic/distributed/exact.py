"""Exact reduction: the sum over all slots with brackets that depend on their number only (see elastic.plan.tree).

Locally a step costs one more addition for every second slot. What a rank has left are sums of a few subtrees. Every
rank gets its piece of each of them from everybody, adds them up in the tree's order, and the pieces are collected:
as much on the wire as a plain sum needs where each rank has one subtree. Between two such ranks the plain sum itself
is exact, since a + b = b + a.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from elastic.distributed.buckets import Bucket, Gradients
from elastic.distributed.group import Collectives, Pending
from elastic.plan.tree import Leaf, Part, Spread

_SUMMED_ALIKE = (torch.float32, torch.float64)
"""Types whose sum over two ranks has the same bits as torch's own; of the others each rounds in its own way."""


@dataclass(kw_only=True)
class _Slot:
    """The micro-batch that is being computed: its own sum, and those that will take it in."""

    leaf: Leaf
    own: Gradients
    lefts: tuple[Gradients, ...]


@dataclass(kw_only=True)
class _Sent:
    """A bucket on its way: the rounds of its exchange, each with the pieces that come in, by part."""

    bucket: int
    pending: list[Pending]
    pieces: dict[Part, torch.Tensor]


class TreeSum:
    """`elastic.distributed.reduction.Reduction` whose sums have the same bits at any world size."""

    strict = True

    def __init__(self, group: Callable[[], Collectives]) -> None:
        self._group = group
        self._kept: tuple[tuple[Bucket, ...], int] = ((), 0)
        self._planned: tuple[Spread, int] = (Spread(()), 0)
        self._work: dict[int, Leaf] = {}
        self._parts: list[tuple[Part, ...]] = []
        self._spare: list[Gradients] = []
        self._received: dict[tuple[int, int], torch.Tensor] = {}
        self._sums: dict[Part, Gradients] = {}
        self._slot: _Slot | None = None
        self._sent: list[_Sent | Pending] = []

    def begin_step(self, buckets: tuple[Bucket, ...], spread: Spread) -> None:
        """Take back all buffers; make new ones where the parameters or the world have changed."""
        group = self._group()
        self._spare += self._sums.values()
        if self._slot is not None:
            self._spare += (self._slot.own, *self._slot.lefts)
        self._sums, self._slot, self._sent = {}, None, []
        if buckets is not self._kept[0] or group.size != self._kept[1]:
            self._kept, self._spare, self._received = (buckets, group.size), [], {}
        if (spread, group.rank) != self._planned:
            self._planned, self._received = (spread, group.rank), {}
            self._work = spread.work(group.rank)
            self._parts = [spread.parts(rank) for rank in range(group.size)]

    def begin_slot(self, slot: int) -> tuple[Gradients, bool]:
        """What is to be overwritten, or the sum of the left neighbour."""
        self._end_slot()
        leaf = self._work[slot]
        own = self._sums.pop(leaf.base) if leaf.base else self._buffers()
        self._slot = _Slot(leaf=leaf, own=own, lefts=tuple(self._sums.pop(left) for left in leaf.lefts))
        return own, leaf.base is None

    def filled(self, bucket: int) -> None:
        """Add this bucket's gradients to the sums that they complete, while they are still in the cache."""
        assert self._slot is not None
        last = self._slot.own
        for left in self._slot.lefts:
            left.flats[bucket].add_(last.flats[bucket])
            last = left

    def send(self, bucket: int) -> None:
        """Begin the exchange of this bucket's pieces."""
        group = self._group()
        mine = self._mine(bucket)
        if group.size == 1:
            return
        if self._sum_is_exact(bucket):
            self._sent.append(group.start_sum(mine[0]))
            return
        sent = _Sent(bucket=bucket, pending=[], pieces={})
        piece = self._padded(bucket) // group.size
        for turn in range(max(len(parts) for parts in self._parts)):
            takes = [piece if turn < len(parts) else 0 for parts in self._parts]
            gives = [piece if turn < len(mine) else 0] * group.size
            received = self._buffer(bucket, turn, elements=sum(takes))
            own = mine[turn] if turn < len(mine) else received[:0]
            sent.pending.append(group.start_exchange(received, own, takes=takes, gives=gives))
            came = [parts[turn] for parts in self._parts if turn < len(parts)]
            sent.pieces |= dict(zip(came, torch.split(received, piece), strict=True))
        self._sent.append(sent)

    def finish(self) -> Gradients:
        """Add up what has come in, and collect everybody's pieces."""
        self._end_slot()
        group = self._group()
        mine = self._parts[group.rank]
        result = self._sums.pop(mine[0]) if mine else self._buffers()
        collecting: list[Pending] = []
        whole = Part(0, self._planned[0].leaves)
        for sent in self._sent:
            if not isinstance(sent, _Sent):
                sent.wait()
                continue
            for pending in sent.pending:
                pending.wait()
            total = _add_up(whole, sent.pieces)
            collecting.append(group.start_collect(result.flats[sent.bucket], total))
        for pending in collecting:
            pending.wait()
        self._sent = []
        self._sums[whole] = result  # taken back by the next step
        return result

    def _end_slot(self) -> None:
        slot, self._slot = self._slot, None
        if slot is None:
            return
        chain = (slot.own, *slot.lefts)
        self._sums[slot.leaf.result] = chain[-1]
        self._spare += chain[:-1]

    def _mine(self, bucket: int) -> list[torch.Tensor]:
        """This rank's sums. The last one may still be with the present slot, whose other buckets are not filled yet."""
        sums = {part: gradients.flats[bucket] for part, gradients in self._sums.items()}
        if self._slot is not None:
            sums[self._slot.leaf.result] = (self._slot.own, *self._slot.lefts)[-1].flats[bucket]
        return [sums[part] for part in self._parts[self._group().rank]]

    def _sum_is_exact(self, bucket: int) -> bool:
        return [len(parts) for parts in self._parts] == [1, 1] and self._kept[0][bucket].dtype in _SUMMED_ALIKE

    def _padded(self, bucket: int) -> int:
        return self._kept[0][bucket].padded(self._kept[1])

    def _buffers(self) -> Gradients:
        return self._spare.pop() if self._spare else Gradients(self._kept[0], pieces=self._kept[1])

    def _buffer(self, bucket: int, turn: int, *, elements: int) -> torch.Tensor:
        kept = self._received.get((bucket, turn))
        if kept is None:
            kind = self._kept[0][bucket]
            kept = self._received[bucket, turn] = torch.empty(elements, dtype=kind.dtype, device=kind.device)
        return kept


def _add_up(part: Part, pieces: dict[Part, torch.Tensor]) -> torch.Tensor:
    """The sum of a part, in place of the leftmost piece that it is made of."""
    if part in pieces:
        return pieces[part]
    left, right = (_add_up(half, pieces) for half in part.halves)
    return left.add_(right)
