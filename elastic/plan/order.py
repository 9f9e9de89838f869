"""Order: which item of the data set the global sample number g is, computed and never listed.

Sample g belongs to epoch g // length. Each epoch is a keyed permutation of the items: a Feistel network over the next
even power of two, walked until it falls inside the data set (cycle walking keeps a bijection a bijection). Any
position of any epoch costs the same few microseconds and no memory, so a resume seeks in constant time.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from elastic.plan.mix import mix64, mix_pair

ORDER_VERSION = 1
"""Saved with the position. A change of the values below needs another number, and a reader for the old one."""

_ROUNDS = 6
_MIN_HALF_BITS = 4  # fewer bits leave too few different permutations to tiny data sets


class OrderKind(enum.StrEnum):
    """How an epoch runs through the data set."""

    SHUFFLE = "shuffle"
    SEQUENTIAL = "sequential"


@dataclass(frozen=True, kw_only=True)
class Order:
    """The order of a data set of `length` items; the same for every rank, world size and batch size."""

    length: int
    seed: int
    kind: OrderKind = OrderKind.SHUFFLE

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"an order needs at least one item; got length {self.length}")

    def index(self, sample: int) -> int:
        """Item of the data set that global sample number `sample` (from 0, growing through all epochs) is."""
        if sample < 0:
            raise ValueError(f"sample numbers start at 0; got {sample}")
        epoch, position = divmod(sample, self.length)
        if self.kind is OrderKind.SEQUENTIAL:
            return position
        return _permute(position, length=self.length, key=mix_pair(self.seed, epoch))


def _permute(position: int, *, length: int, key: int) -> int:
    """Position of one epoch -> item: a bijection of range(length) for every key."""
    half_bits = max(_MIN_HALF_BITS, ((length - 1).bit_length() + 1) // 2)
    mask = (1 << half_bits) - 1
    value = position
    while True:
        left, right = value >> half_bits, value & mask
        for round_ in range(_ROUNDS):
            left, right = right, left ^ (mix64(key + (round_ << 56) + right) & mask)
        value = (left << half_bits) | right
        if value < length:
            return value
