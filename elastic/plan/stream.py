"""Stream order: samples that have no index, read from logical shards in the order in which they come.

Every slot of the global batch owns some of the shards, and reads on where it stands. So which shard a sample comes
from, and how many its slot has read before it, depends on its number only: not on ranks, not on the world size.
"""

from __future__ import annotations

from dataclasses import dataclass

_SLOT_SHIFT = 40  # a slot may read a trillion samples before its numbers meet those of the next one


@dataclass(frozen=True, kw_only=True)
class StreamOrder:
    """The order of streamed shards under a global batch that stays as it is."""

    global_batch_size: int
    micro_batch_size: int

    @property
    def length(self) -> int:
        """Samples of one step: a stream has no epochs, so that each step may as well be one."""
        return self.global_batch_size

    @property
    def slots(self) -> int:
        """Slots of the global batch."""
        return -(-self.global_batch_size // self.micro_batch_size)

    def index(self, sample: int) -> int:
        """The slot of a sample and the samples that it reads before it, in one number."""
        return slot_index(*self.place(sample))

    def place(self, sample: int) -> tuple[int, int]:
        """(slot, samples that the slot reads before this one)."""
        step, within = divmod(sample, self.global_batch_size)
        slot, offset = divmod(within, self.micro_batch_size)
        return slot, step * self.slot_samples(slot) + offset

    def sample(self, slot: int, before: int) -> int:
        """The inverse of `place`."""
        step, offset = divmod(before, self.slot_samples(slot))
        return step * self.global_batch_size + slot * self.micro_batch_size + offset

    def slot_samples(self, slot: int) -> int:
        """Samples that a slot reads in one step: the last slot may have fewer."""
        return min(self.micro_batch_size, self.global_batch_size - slot * self.micro_batch_size)


def slot_index(slot: int, before: int) -> int:
    """What `StreamOrder.index` gives for the sample that a slot reads after `before` others."""
    return slot << _SLOT_SHIFT | before


def slot_and_place(index: int) -> tuple[int, int]:
    """The inverse of `slot_index`."""
    return index >> _SLOT_SHIFT, index & ((1 << _SLOT_SHIFT) - 1)
