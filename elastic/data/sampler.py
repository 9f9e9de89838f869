"""Sampler: the keys of one rank's micro-batches, step after step, from a position to the end of the run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from elastic.plan.batch import BatchPlan
from elastic.plan.data_order import SampleOrder

Key = tuple[int, int]
"""(global sample number, index of the item in the data set)."""


@dataclass(frozen=True, kw_only=True)
class SlotSampler:
    """A batch sampler for a DataLoader: each iteration starts at `position` anew and yields a list of keys a slot."""

    plan: BatchPlan
    order: SampleOrder
    world_size: int
    rank: int
    position: int

    def __iter__(self) -> Iterator[list[Key]]:
        start, stop = self.plan.span(self.position)
        while start < stop:
            for micro in self.plan.micro_batches(start, world_size=self.world_size, rank=self.rank):
                yield [(sample, self.order.index(sample)) for sample in range(micro.start, micro.stop)]
            start, stop = self.plan.span(stop)
