"""Tensors dealt out over the ranks: which part of the whole a rank holds. Pure arithmetic, no torch.

Along one axis every rank gets ceil(size / ranks) indices in turn, so that the last ranks may get fewer or none: the
way in which torch's `Shard` placement and `Tensor.chunk` deal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, kw_only=True)
class Window:
    """A box in a whole tensor: where it begins on each axis, and its size there."""

    offset: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def empty(self) -> bool:
        """Whether it holds no element."""
        return 0 in self.size

    def meet(self, other: Window) -> Window:
        """What lies in both; where they do not meet, an empty one."""
        offset = tuple(map(max, self.offset, other.offset))
        ends = (min(a + n, b + m) for a, n, b, m in zip(self.offset, self.size, other.offset, other.size, strict=True))
        return Window(offset=offset, size=tuple(max(0, end - at) for at, end in zip(offset, ends, strict=True)))

    def slices(self, origin: Sequence[int]) -> tuple[slice, ...]:
        """How to index a tensor that begins at `origin` of the whole to get this box of it."""
        return tuple(
            slice(at - start, at - start + size)
            for at, start, size in zip(self.offset, origin, self.size, strict=True)
        )  # fmt: skip


def whole(shape: Sequence[int]) -> Window:
    """All of a tensor."""
    return Window(offset=(0,) * len(shape), size=tuple(shape))


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The part that `rank` of `ranks` holds of a tensor of `shape`, which is dealt out along `axis`."""

    shape: tuple[int, ...]
    axis: int
    ranks: int
    rank: int

    @property
    def window(self) -> Window:
        """Where this rank's part lies; empty where it has none."""
        return self.window_of(self.rank)

    def window_of(self, rank: int) -> Window:
        """Where the part of any rank lies."""
        each = -(-self.shape[self.axis] // self.ranks)
        start = min(self.shape[self.axis], rank * each)
        stop = min(self.shape[self.axis], start + each)
        offset, size = [0] * len(self.shape), list(self.shape)
        offset[self.axis], size[self.axis] = start, stop - start
        return Window(offset=tuple(offset), size=tuple(size))

    @property
    def holders(self) -> tuple[int, ...]:
        """Ranks that write a part: those that hold elements, and rank 0 for a whole without any."""
        if prod(self.shape) == 0:
            return (0,)
        return tuple(rank for rank in range(self.ranks) if not self.window_of(rank).empty)
