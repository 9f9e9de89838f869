"""Segments: orders that follow one another, each from a known sample on; the record of a data set that changed.

What came before a change stays as it was, so that the list tells every sample for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar


class Epochs(Protocol):
    """An order that runs through a number of items again and again."""

    @property
    def length(self) -> int: ...

    def index(self, sample: int, /) -> int: ...


OrderT = TypeVar("OrderT", bound=Epochs)


@dataclass(frozen=True, kw_only=True)
class Segment(Generic[OrderT]):
    """From sample `start` on, the order of one data set; `first_epoch` is the number of its first epoch."""

    start: int
    first_epoch: int
    order: OrderT

    def within(self, sample: int) -> int:
        """The number that a sample has in this segment's order."""
        return sample - self.start + self.first_epoch * self.order.length

    def index(self, sample: int) -> int:
        """Item that a sample of this segment is."""
        return self.order.index(self.within(sample))

    def epoch_of(self, sample: int) -> tuple[int, int]:
        """The (epoch, position within it) of a sample."""
        epoch, position = divmod(sample - self.start, self.order.length)
        return epoch + self.first_epoch, position


@dataclass(frozen=True, kw_only=True)
class Segments(Generic[OrderT]):
    """All segments by their start; the first starts at 0."""

    segments: tuple[Segment[OrderT], ...]

    def __post_init__(self) -> None:
        starts = [segment.start for segment in self.segments]
        if not starts or starts[0] != 0 or starts != sorted(starts):
            raise ValueError(f"segments start at 0 and follow one another; got starts {starts}")

    @classmethod
    def of(cls, order: OrderT) -> Self:
        """One order from the first sample on."""
        return cls(segments=(Segment(start=0, first_epoch=0, order=order),))

    @property
    def last(self) -> Segment[OrderT]:
        """The one that goes on for ever."""
        return self.segments[-1]

    @property
    def length(self) -> int:
        """Items that a data set must hold for what is still to come."""
        return self.last.order.length

    def segment_of(self, sample: int) -> Segment[OrderT]:
        """The segment that a sample lies in."""
        if sample < 0:
            raise ValueError(f"sample numbers start at 0; got {sample}")
        return next(segment for segment in reversed(self.segments) if segment.start <= sample)

    def index(self, sample: int) -> int:
        """Item of the data set that a sample is."""
        return self.segment_of(sample).index(sample)

    def epoch_of(self, sample: int) -> tuple[int, int]:
        """The (epoch, position within it) of a sample, both from 0."""
        return self.segment_of(sample).epoch_of(sample)

    def followed(self, segment: Segment[OrderT]) -> Self:
        """The same up to where another segment begins."""
        earlier = tuple(each for each in self.segments if each.start < segment.start)
        return type(self)(segments=(*earlier, segment))

    def grown(self, order: OrderT, *, position: int) -> Self:
        """The epoch that is under way at `position` is finished as it was begun; from the next one on `order`."""
        reached = max(position, self.last.start)
        epoch, place = self.last.epoch_of(reached)
        left = self.last.order.length - place if place else 0
        return self.followed(Segment(start=reached + left, first_epoch=epoch + (1 if place else 0), order=order))
