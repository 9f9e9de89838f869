"""Mixture: several data sets used side by side in fixed shares, each in an order of its own.

Which part a sample belongs to is a pattern that repeats after as many samples as the weights add up to, dealt out as
proportionate fair scheduling does (Baruah et al. 1996; earliest deadline first). So every part has its share to less
than one sample at any time and exactly after each round, and any sample is found without those before it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from elastic.plan.order import Order
from elastic.plan.segments import Segments

PartOrder = Order | Segments[Order]
"""Of a part that never changed, or that got more items while it was used."""
MOST_SHARES = 1_000_000
"""Weights may add up to no more: the pattern of one round is kept in memory."""


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """The order of a mixture. Item numbers run through all parts, one after the other."""

    parts: tuple[PartOrder, ...]
    weights: tuple[int, ...]
    """Samples of each part in one round."""
    shift: int = 0
    """Added to sample numbers: a mixture whose parts grew goes on in the pattern and the parts where it was."""
    _pattern: tuple[tuple[int, int], ...] = field(init=False, repr=False, compare=False)
    """(part, how many samples of it came before in the round) of each sample of a round."""

    def __post_init__(self) -> None:
        if not self.parts or len(self.parts) != len(self.weights) or min(self.weights) < 1:
            raise ValueError(f"a mixture needs a positive weight for each of its parts; got {self.weights}")
        if sum(self.weights) > MOST_SHARES:
            raise ValueError(f"the weights add up to {sum(self.weights)}, the most is {MOST_SHARES}; round them")
        object.__setattr__(self, "_pattern", _pattern(self.weights))

    @property
    def lengths(self) -> tuple[int, ...]:
        """Items of each part."""
        return tuple(part.length for part in self.parts)

    @property
    def length(self) -> int:
        """Items of all parts."""
        return sum(self.lengths)

    @property
    def anew(self) -> Mixture:
        """What a run that begins with these data sets would use: without what they were before."""
        parts = tuple(part if isinstance(part, Order) else part.last.order for part in self.parts)
        return Mixture(parts=parts, weights=self.weights)

    def index(self, sample: int) -> int:
        """Item that global sample number `sample` is: those of part 0 come first, then those of part 1, ..."""
        if sample < 0:
            raise ValueError(f"sample numbers start at 0; got {sample}")
        round_, place = divmod(sample + self.shift, len(self._pattern))
        part, before = self._pattern[place]
        offset = sum(each.length for each in self.parts[:part])
        return offset + self.parts[part].index(round_ * self.weights[part] + before)

    def used_before(self, sample: int) -> tuple[int, ...]:
        """Samples of each part that come before a sample."""
        round_, place = divmod(sample + self.shift, len(self._pattern))
        begun = Counter(part for part, _ in self._pattern[:place])
        return tuple(round_ * weight + begun[part] for part, weight in enumerate(self.weights))

    def grown(self, orders: Sequence[Order], *, sample: int, becomes: int) -> Mixture:
        """Go on at `sample`, which has the number `becomes` from there on, with parts of which some hold more items.

        Each part finishes its epoch on the items that it began with, however much of it is left.
        """
        parts = tuple(
            part if order.length == part.length else _segments(part).grown(order, position=used)
            for part, order, used in zip(self.parts, orders, self.used_before(sample), strict=True)
        )
        return Mixture(parts=parts, weights=self.weights, shift=sample + self.shift - becomes)


def _segments(part: PartOrder) -> Segments[Order]:
    return Segments.of(part) if isinstance(part, Order) else part


def whole_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """The smallest whole numbers in the same proportion, as written: 0.7 and 0.3 are 7 and 3.

    Raises:
        ValueError: a weight that is not positive and finite, or weights that need a round above MOST_SHARES.
    """
    if not weights or not all(math.isfinite(weight) and weight > 0 for weight in weights):
        raise ValueError(f"weights must be positive numbers; got {list(weights)}")
    shares = [Fraction(str(weight)) for weight in weights]
    common = math.lcm(*(share.denominator for share in shares))
    whole = [int(share * common) for share in shares]
    divisor = math.gcd(*whole)
    whole = [each // divisor for each in whole]
    if sum(whole) > MOST_SHARES:
        raise ValueError(f"the weights {list(weights)} are whole only as {whole}; round them to fewer digits")
    return tuple(whole)


def _pattern(weights: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """One round: each part's n-th sample in a window of its own, the window that ends first is served first."""
    total, counts, pattern = sum(weights), [0] * len(weights), []
    for place in range(total):
        part = min(
            (each for each, weight in enumerate(weights) if counts[each] * total // weight <= place),
            key=lambda each: -(-(counts[each] + 1) * total // weights[each]),
        )
        pattern.append((part, counts[part]))
        counts[part] += 1
    return tuple(pattern)
