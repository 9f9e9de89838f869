"""Tree: in which order the micro-batches of a step are added up, so that the sum is the same bits at any world size.

Floating-point addition is not associative: a sum depends on its brackets. Here the brackets are a binary tree over the
step's slots whose shape depends on their number only. A rank adds up the largest subtrees that lie in its own
contiguous slots; what is above them is added up after they have been exchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from elastic.plan.batch import share


@dataclass(frozen=True)
class Part:
    """The slots start..stop-1: one node of the tree, and the sum over them."""

    start: int
    stop: int

    @property
    def halves(self) -> tuple[Part, Part]:
        """The two nodes below it: left takes the largest power of two that leaves something to the right."""
        size = self.stop - self.start
        if size < 2:
            raise ValueError(f"slot {self.start} alone has no halves")
        middle = self.start + (1 << ((size - 1).bit_length() - 1))
        return Part(self.start, middle), Part(middle, self.stop)


def parts_of(slots: range, *, leaves: int) -> tuple[Part, ...]:
    """The largest nodes of the tree over `leaves` slots that lie wholly within `slots`, in slot order."""

    def within(node: Part) -> Iterator[Part]:
        if slots.start <= node.start and node.stop <= slots.stop:
            yield node
        elif node.start < slots.stop and slots.start < node.stop:
            for half in node.halves:
                yield from within(half)

    return tuple(within(Part(0, leaves))) if leaves and len(slots) else ()


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """What a rank does with the gradient of one slot.

    It is accumulated into the sum `base` (None: it stands alone). Then each of `lefts`, innermost first, takes in what
    has been summed so far; what comes of it is the sum `result`. Accumulating into the left neighbour's gradient is the
    same as adding the two: every second slot costs nothing more than accumulation does anyway.
    """

    base: Part | None
    lefts: tuple[Part, ...]
    result: Part


def leaves_of(part: Part) -> dict[int, Leaf]:
    """The leaf of every slot of a part, to be done in slot order; the last one's result is the part."""
    if part.stop - part.start == 1:
        return {part.start: Leaf(base=None, lefts=(), result=part)}
    left, right = part.halves
    found = leaves_of(left) | leaves_of(right)
    last = part.stop - 1
    leaf = found[last]
    if part.stop - part.start == 2:
        found[last] = Leaf(base=left, lefts=(), result=part)
    else:
        found[last] = Leaf(base=leaf.base, lefts=(*leaf.lefts, left), result=part)
    return found


@dataclass(frozen=True)
class Spread:
    """Which occupied slots of a step each rank computes: contiguous, in rank order; some may be empty."""

    ranks: tuple[range, ...]

    @property
    def leaves(self) -> int:
        """Occupied slots in all."""
        return sum(len(slots) for slots in self.ranks)

    def parts(self, rank: int) -> tuple[Part, ...]:
        """The sums that a rank brings into the exchange."""
        return parts_of(self.ranks[rank], leaves=self.leaves)

    def work(self, rank: int) -> dict[int, Leaf]:
        """What a rank does with each of its slots."""
        found: dict[int, Leaf] = {}
        for part in self.parts(rank):
            found |= leaves_of(part)
        return found


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """How a world size suits a number of slots. `idle` is the share of all workers' time that some of them wait."""

    world_size: int
    most_slots: int
    idle: float
    most_parts: int
    """Sums that a rank exchanges at most under `numerics: exact`; 1 costs no more than the plain sum does."""


def sharings(slots: int, *, world_sizes: Sequence[int]) -> tuple[Sharing, ...]:
    """What each world size makes of a global batch of so many slots."""
    found = []
    for size in world_sizes:
        spread = Spread(tuple(share(slots, world_size=size, rank=rank) for rank in range(size)))
        most = max(len(own) for own in spread.ranks)
        found.append(
            Sharing(
                world_size=size,
                most_slots=most,
                idle=1 - slots / (most * size),
                most_parts=max(len(spread.parts(rank)) for rank in range(size)),
            )
        )
    return tuple(found)


def told(sharings: Sequence[Sharing], *, slots: int, exact: bool) -> str:
    """One line for people: how well each world size shares out the slots of a global batch."""
    parts = [
        f"{one.world_size}: {one.most_slots} each, {one.idle:.0%} idle"
        + (f", {one.most_parts} sums" if exact and one.most_parts > 1 else "")
        for one in sharings
    ]
    return f"a step is {slots} micro-batches; by workers: " + "; ".join(parts)
