"""Loader: this rank's micro-batches of each step, from the run's position; the position moves only by a commit.

Its whole state is the position, one number that every rank shares and any world size can go on from. What was fetched
but not committed is fetched again: a death between fetching and the optimizer step loses and repeats nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from elastic.data.carrier import Carrier
from elastic.data.fetch import Collate, Fetched, MapDataset, NumberedDataset
from elastic.data.sampler import SlotSampler
from elastic.errors import DataError, ElasticError
from elastic.plan.batch import BatchPlan, MicroSpan
from elastic.plan.order import Order


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """One micro-batch as it was really fetched: its slot, global sample numbers, items' indices, and the batch."""

    slot: int
    samples: tuple[int, ...]
    indices: tuple[int, ...]
    batch: Any


class ElasticLoader:
    """Batches of a map-style data set for one rank.

    Use: `for micro in loader.next_step(): ...`, the optimizer's step, then `loader.commit()`. Another `next_step()`
    without a commit gives the same step again. From one thread, the one that made it: loader processes end when the
    thread that started them does.
    """

    def __init__(
        self,
        dataset: MapDataset,
        *,
        plan: BatchPlan,
        order: Order,
        world_size: int,
        rank: int,
        position: int = 0,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        pin_memory: bool = False,
        collate_fn: Collate | None = None,
    ) -> None:
        _check_length(len(dataset), order)
        self._dataset = NumberedDataset(dataset, seed=order.seed, collate=collate_fn)
        self._plan = plan
        self._order = order
        self._num_workers = num_workers
        self._prefetch_factor = prefetch_factor
        self._pin_memory = pin_memory
        self._carrier: Carrier | None = None
        self._step: _Step | None = None
        self.move(position=position, world_size=world_size, rank=rank)

    @property
    def position(self) -> int:
        """Samples consumed by committed steps. All of the loader's state."""
        return self._position

    @property
    def finished(self) -> bool:
        """Whether all samples of the run are consumed."""
        return self._position >= self._plan.total_samples

    def move(self, *, position: int, world_size: int, rank: int) -> None:
        """Go on from `position` as `rank` of `world_size`; what was fetched and not committed is dropped."""
        self._plan.micro_batches(position, world_size=world_size, rank=rank)  # refuses what cannot be
        self.close()
        self._position = position
        self._world_size = world_size
        self._rank = rank

    def next_step(self) -> Iterator[MicroBatch]:
        """This rank's micro-batches of the step at the position, fetched as they are asked for; may be none.

        Raises:
            ElasticError: no samples are left.
        """
        if self.finished:
            raise ElasticError(f"all {self._plan.total_samples} samples of the run are consumed; check `finished`")
        if self._step is not None and self._step.asked > 0:
            self.close()  # the step is done again: its batches come anew, from where the position still is
        spans = self._plan.micro_batches(self._position, world_size=self._world_size, rank=self._rank)
        self._step = _Step(spans=spans)
        return self._fetch(self._step)

    def commit(self) -> int:
        """The optimizer step is done: move the position past it, and return it.

        Raises:
            ElasticError: no step was begun, or some of its micro-batches were never fetched.
        """
        if self._step is None:
            raise ElasticError("there is no step to commit: next_step() comes first")
        if self._step.fetched < len(self._step.spans):
            raise ElasticError(
                f"only {self._step.fetched} of this rank's {len(self._step.spans)} micro-batches were fetched: "
                "a step may be committed only when all of its samples were used"
            )
        _, self._position = self._plan.span(self._position)
        self._step = None
        if self.finished:
            self.close()
        return self._position

    def close(self) -> None:
        """Drop batches fetched ahead and end loader processes. The position stays; next_step() may follow."""
        self._step = None
        if self._carrier is not None:
            self._carrier.close()
            self._carrier = None

    def _fetch(self, step: _Step) -> Iterator[MicroBatch]:
        for span in step.spans:
            if step is not self._step:
                raise ElasticError("these micro-batches belong to a step that was committed, begun again or dropped")
            if self._carrier is None:
                self._carrier = self._new_carrier()
            step.asked += 1
            micro = _checked(next(self._carrier, None), span)
            step.fetched += 1
            yield micro

    def _new_carrier(self) -> Carrier:
        sampler = SlotSampler(
            plan=self._plan,
            order=self._order,
            world_size=self._world_size,
            rank=self._rank,
            position=self._position,
        )
        return Carrier(
            self._dataset,
            batches=sampler,
            num_workers=self._num_workers,
            prefetch_factor=self._prefetch_factor,
            pin_memory=self._pin_memory,
        )


@dataclass(kw_only=True)
class _Step:
    """The step begun and not committed."""

    spans: tuple[MicroSpan, ...]
    asked: int = 0
    fetched: int = 0  # fewer than asked once a fetch has failed


def _checked(fetched: Fetched | None, span: MicroSpan) -> MicroBatch:
    """What was fetched, if it is what the plan asks for: the account must never rest on the plan alone."""
    if fetched is None:
        raise ElasticError(f"the data loader ended before samples {span.start} to {span.stop}")
    samples, indices, batch = fetched
    if tuple(samples) != tuple(range(span.start, span.stop)):
        raise ElasticError(f"the data loader brought samples {samples}; the plan asks for {span.start} to {span.stop}")
    return MicroBatch(slot=span.slot, samples=tuple(samples), indices=tuple(indices), batch=batch)


def _check_length(length: int, order: Order) -> None:
    if length < 1:
        raise DataError("the data set is empty: it must hold at least one item; check the path that it is read from")
    if length != order.length:
        raise DataError(
            f"the data set holds {length} items, but the run's order was made for {order.length}: "
            "give it the same data, or start another run"
        )
