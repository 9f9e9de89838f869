"""Curve: a series of any length in bounded memory, as means with their extremes. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_LARGEST = 1e300
"""Beyond it differences are endless."""


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Neighbouring points as one: where they begin and end, their mean, lowest and highest value."""

    start: float
    stop: float
    mean: float
    low: float
    high: float
    count: int


class Curve:
    """Points come with rising x. When there are too many buckets, neighbours become one; nothing is left out.

    Args:
        most: the most buckets that `buckets` ever returns, an even number.
    """

    def __init__(self, *, most: int = 1000) -> None:
        self._most = most
        self._full = 1
        self._buckets: list[Bucket] = []

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """What there is now, by x."""
        return tuple(self._buckets)

    def add(self, x: float, y: float) -> None:
        """One more point; a value that is no finite number (or nearly endless) is none."""
        if not abs(y) < _LARGEST:
            return
        point = Bucket(start=x, stop=x, mean=y, low=y, high=y, count=1)
        if self._buckets and self._buckets[-1].count < self._full:
            self._buckets[-1] = _joined(self._buckets[-1], point)
            return
        if len(self._buckets) == self._most:
            self._buckets = [_joined(*self._buckets[at : at + 2]) for at in range(0, self._most, 2)]
            self._full *= 2
        self._buckets.append(point)

    def back_to(self, x: float) -> None:
        """What came after x is to be done again: it counts no more."""
        while self._buckets and self._buckets[-1].start > x:
            self._buckets.pop()


def _joined(one: Bucket, other: Bucket) -> Bucket:
    count = one.count + other.count
    return Bucket(
        start=one.start,
        stop=other.stop,
        mean=one.mean + (other.mean - one.mean) * (other.count / count),
        low=min(one.low, other.low),
        high=max(one.high, other.high),
        count=count,
    )
