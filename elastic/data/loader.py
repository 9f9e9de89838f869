"""Loader: this rank's micro-batches of each step, from the run's position; the position moves only by a commit.

Its whole state is the position, one number that every rank shares and any world size can go on from. What was fetched
but not committed is fetched again: a death between fetching and the optimizer step loses and repeats nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from elastic.data.carrier import Carrier, Transport
from elastic.data.fetch import Collate, Fetched, Fetcher, MapDataset, NumberedDataset
from elastic.data.sampler import SlotSampler
from elastic.data.stream import ShardStream, StreamFetcher
from elastic.errors import DataError, ElasticError, UsageError
from elastic.plan.batch import BatchPlan, MicroSpan, share
from elastic.plan.data_order import SampleOrder
from elastic.plan.stream import StreamOrder


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """One micro-batch as it was really fetched: its slot, global sample numbers, items' indices, and the batch."""

    slot: int
    samples: tuple[int, ...]
    indices: tuple[int, ...]
    batch: Any


class ElasticLoader:
    """Batches of a data set for one rank.

    Use: `for micro in loader.next_step(): ...`, the optimizer's step, then `loader.commit()`. Another `next_step()`
    without a commit gives the same step again. From one thread, the one that made it: loader processes end when the
    thread that started them does.
    """

    def __init__(
        self,
        dataset: MapDataset | ShardStream,
        *,
        plan: BatchPlan,
        order: SampleOrder,
        seed: int,
        world_size: int,
        rank: int,
        position: int = 0,
        states: Mapping[int, str] | None = None,
        collate_fn: Collate | None = None,
        transport: Transport = Transport(),  # noqa: B008 - frozen
    ) -> None:
        """`states`: of slots that read from a stream, at `position` or before it."""
        _check_length(dataset, order)
        self._dataset = dataset
        self._seed = seed
        self._collate = collate_fn
        self._plan = plan
        self._order = order
        self._transport = transport
        self._states = dict(states or {})
        self._carrier: Carrier | None = None
        self._step: _Step | None = None
        self.move(position=position, world_size=world_size, rank=rank)

    @property
    def states(self) -> dict[int, str]:
        """Where the slots that this rank has run stand after the last commit; empty for data that has an index."""
        return {slot: text for slot, text in self._states.items() if slot in self._own_slots()}

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

    def stand_in(self) -> MicroBatch:
        """The step's first micro-batch, for a rank that has fewer than others and must keep them company. No part of
        the account.

        Raises:
            UsageError: the data is a stream, of which each micro-batch comes once.
        """
        if isinstance(self._dataset, ShardStream):
            raise UsageError(
                "with training.strategy: fsdp2 all ranks need equally many micro-batches of a stream: make "
                "global_batch_size a multiple of micro_batch_size times the number of workers"
            )
        first, *_ = self._plan.micro_batches(self._position, world_size=self._world_size, rank=0)
        keys = [(sample, self._order.index(sample)) for sample in range(first.start, first.stop)]
        return _checked(self._fetcher().__getitems__(keys), first)[0]

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
        self._states.update(self._step.states)
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
            micro, state = _checked(next(self._carrier, None), span)
            if state:
                step.states[micro.slot] = state
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
        return Carrier(self._fetcher(), batches=sampler, transport=self._own_transport())

    def _fetcher(self) -> Fetcher:
        if not isinstance(self._dataset, ShardStream):
            return NumberedDataset(self._dataset, seed=self._seed, collate=self._collate)
        order = StreamOrder(
            global_batch_size=self._plan.global_batch_size, micro_batch_size=self._plan.micro_batch_size
        )
        return StreamFetcher(self._dataset, order=order, seed=self._seed, collate=self._collate, states=self._states)

    def _own_transport(self) -> Transport:
        """Micro-batches go round the loader processes; a slot that reads a stream must stay with one of them."""
        slots = len(self._own_slots())
        if not isinstance(self._dataset, ShardStream) or slots == 0:
            return self._transport
        fitting = (number for number in range(self._transport.num_workers, 0, -1) if slots % number == 0)
        return replace(self._transport, num_workers=next(fitting, 0))

    def _own_slots(self) -> range:
        return share(self._plan.slots, world_size=self._world_size, rank=self._rank)


@dataclass(kw_only=True)
class _Step:
    """The step begun and not committed."""

    spans: tuple[MicroSpan, ...]
    asked: int = 0
    fetched: int = 0  # fewer than asked once a fetch has failed
    states: dict[int, str] = field(default_factory=dict)


def _checked(fetched: Fetched | None, span: MicroSpan) -> tuple[MicroBatch, str]:
    """What was fetched, if it is what the plan asks for: the account must never rest on the plan alone."""
    if fetched is None:
        raise ElasticError(f"the data loader ended before samples {span.start} to {span.stop}")
    samples, indices, batch, state = fetched
    if tuple(samples) != tuple(range(span.start, span.stop)):
        raise ElasticError(f"the data loader brought samples {samples}; the plan asks for {span.start} to {span.stop}")
    return MicroBatch(slot=span.slot, samples=tuple(samples), indices=tuple(indices), batch=batch), state


def _check_length(dataset: MapDataset | ShardStream, order: SampleOrder) -> None:
    if isinstance(dataset, ShardStream):
        return
    length, needed = len(dataset), getattr(order, "length", 1)
    if length < 1:
        raise DataError("the data set is empty: it must hold at least one item; check the path that it is read from")
    if length < needed:
        raise DataError(
            f"the data set holds {length} items, but the run's order was made for {needed}: "
            "give it the same data, or start another run"
        )
