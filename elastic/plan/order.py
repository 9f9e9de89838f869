"""Order: which item of the data set the global sample number g is, computed and never listed.

Sample g belongs to epoch g // length. Each epoch is a keyed permutation of the items, of the blocks and of the items
within each, or the items as they stand. Any position of any epoch costs the same few microseconds and no memory, so a
resume seeks in constant time.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from elastic.plan.mix import mix_pair
from elastic.plan.permutation import permute, place_of

ORDER_VERSION = 1
"""Saved with the position. A change of the values below needs another number, and a reader for the old one."""


class OrderKind(enum.StrEnum):
    """How an epoch runs through the data set."""

    SHUFFLE = "shuffle"
    BLOCK_SHUFFLE = "block_shuffle"
    """Blocks of neighbouring items in mixed order, the items of each mixed: reads stay near one another."""
    SEQUENTIAL = "sequential"


@dataclass(frozen=True, kw_only=True)
class Order:
    """The order of a data set of `length` items; the same for every rank, world size and batch size."""

    length: int
    seed: int
    kind: OrderKind = OrderKind.SHUFFLE
    block_items: int = 0
    """Items of a block, the last one may be shorter. For BLOCK_SHUFFLE, else 0."""

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"an order needs at least one item; got length {self.length}")
        if (self.block_items > 0) != (self.kind is OrderKind.BLOCK_SHUFFLE):
            raise ValueError(f"block_items belongs to the order block_shuffle; got {self.block_items} for {self.kind}")

    def index(self, sample: int) -> int:
        """Item of the data set that global sample number `sample` (from 0, growing through all epochs) is."""
        if sample < 0:
            raise ValueError(f"sample numbers start at 0; got {sample}")
        epoch, position = divmod(sample, self.length)
        if self.kind is OrderKind.SEQUENTIAL:
            return position
        key = mix_pair(self.seed, epoch)
        if self.kind is OrderKind.BLOCK_SHUFFLE:
            return _in_blocks(position, length=self.length, block=self.block_items, key=key)
        return permute(position, length=self.length, key=key)


def _in_blocks(position: int, *, length: int, block: int, key: int) -> int:
    """Position of one epoch -> item, block by block. The last block may be short and comes anywhere."""
    blocks = -(-length // block)
    missing = blocks * block - length
    shift = 0
    if missing:  # behind the short block all starts come so many items earlier
        short_at = place_of(blocks - 1, length=blocks, key=key)
        shift = missing if position >= (short_at + 1) * block - missing else 0
    place, offset = divmod(position + shift, block)
    chosen = permute(place, length=blocks, key=key)
    size = block - missing if chosen == blocks - 1 else block
    return chosen * block + permute(offset, length=size, key=mix_pair(key, chosen))
