"""Batch plan: which samples each rank computes in which step, as pure arithmetic on the position.

The global batch is a fixed number of slots, each one micro-batch (the last may be smaller). Neither the slots nor
their samples depend on the world size: a world of W ranks only shares the slots out. So every sample is used once at
any world size, and a sum over slots is the same sum.
"""

from __future__ import annotations

from dataclasses import dataclass


def share(slots: int, *, world_size: int, rank: int) -> range:
    """The contiguous slots of one rank. Sizes differ by at most one; with more ranks than slots the last get none."""
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must lie in 0..{world_size - 1}; got {rank}")
    size, extra = divmod(slots, world_size)
    start = rank * size + min(rank, extra)
    return range(start, start + size + (1 if rank < extra else 0))


@dataclass(frozen=True, kw_only=True)
class MicroSpan:
    """One micro-batch: its slot in the global batch and its global sample numbers start..stop-1."""

    slot: int
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """How the samples 0..total_samples-1 of a run are cut into steps and slots."""

    global_batch_size: int
    micro_batch_size: int
    total_samples: int

    def __post_init__(self) -> None:
        for name in ("global_batch_size", "micro_batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if self.total_samples < 0:
            raise ValueError(f"total_samples must not be negative; got {self.total_samples}")

    @property
    def slots(self) -> int:
        """Slots of a global batch: no more ranks than this can have work."""
        return -(-self.global_batch_size // self.micro_batch_size)

    def span(self, position: int) -> tuple[int, int]:
        """Global sample numbers (start, stop) of the step at `position`; the last one may be short, then empty."""
        if not 0 <= position <= self.total_samples:
            raise ValueError(f"the position must lie in 0..{self.total_samples}; got {position}")
        return position, min(position + self.global_batch_size, self.total_samples)

    def micro_batches(self, position: int, *, world_size: int, rank: int) -> tuple[MicroSpan, ...]:
        """This rank's micro-batches of the step at `position`, in slot order; empty ones are left out."""
        start, stop = self.span(position)
        return tuple(
            MicroSpan(slot=slot, start=first, stop=min(first + self.micro_batch_size, stop))
            for slot in share(self.slots, world_size=world_size, rank=rank)
            if (first := start + slot * self.micro_batch_size) < stop
        )

    def spread(self, position: int, *, world_size: int) -> tuple[range, ...]:
        """The slots with samples of the step at `position`, by the rank that computes them."""
        start, stop = self.span(position)
        occupied = -(-(stop - start) // self.micro_batch_size)
        shares = (share(self.slots, world_size=world_size, rank=rank) for rank in range(world_size))
        return tuple(range(min(own.start, occupied), min(own.stop, occupied)) for own in shares)

    def steps_left(self, position: int) -> int:
        """Steps still to do from `position`, a short last one included."""
        return -(-(self.total_samples - self.span(position)[0]) // self.global_batch_size)
