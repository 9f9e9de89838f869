"""Mixed: several map-style data sets as one, used in fixed shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from elastic.data.fetch import MapDataset
from elastic.errors import DataError
from elastic.plan.mixture import whole_weights


class MixedDataset:
    """Data sets side by side: of any stretch of samples each has its weight's share, to less than one sample.

    Every part runs through its own items in an order of its own, as often as its share needs.
    """

    def __init__(self, parts: Sequence[MapDataset], *, weights: Sequence[float]) -> None:
        """`weights`: one for each part, in any unit: 0.7 and 0.3 are 7 of each 10 samples and 3."""
        if len(parts) != len(weights):
            raise DataError(f"a mixture of {len(parts)} data sets needs as many weights; got {len(weights)}")
        try:
            self.weights = whole_weights(weights)
        except ValueError as error:
            raise DataError(str(error)) from error
        self.parts = tuple(parts)
        self.lengths = tuple(len(part) for part in parts)
        if min(self.lengths) < 1:
            empty = self.lengths.index(0)
            raise DataError(f"part {empty} of the mixture is empty: leave it out")

    def __len__(self) -> int:
        return sum(self.lengths)

    def __getitem__(self, index: int) -> Any:
        """Items of all parts, one part after the other."""
        left = index
        for part, length in zip(self.parts, self.lengths, strict=True):
            if 0 <= left < length:
                return part[left]
            left -= length
        raise IndexError(f"the mixture has items 0..{len(self) - 1}; got {index}")
