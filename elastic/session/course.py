"""Course: where a run stands, from restored position to last sample. Moves only when a step is committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from elastic.checkpoint.manager import SaveMeta
from elastic.checkpoint.policy import Signs
from elastic.checkpoint.reader import Restored
from elastic.clock import Clock
from elastic.config.load import to_plain
from elastic.config.model import Settings
from elastic.data.digest import chain
from elastic.data.fetch import MapDataset
from elastic.data.loader import ElasticLoader
from elastic.distributed.group import Collectives
from elastic.distributed.replicate import Replica
from elastic.errors import DataError
from elastic.events import Emit, Notice, OrderChosen, StepCommitted
from elastic.plan.batch import BatchPlan
from elastic.plan.likeness import SAVED_AS, Likeness
from elastic.plan.order import ORDER_VERSION, Order, OrderKind
from elastic.plan.progress import epoch_of, global_step_view, scale_by_global_batch
from elastic.plan.tree import Spread
from elastic.session.step import Step, StepParts
from elastic.world import World

_LOSSES = 65
"""As many losses, the last one among them, as its health is judged by when a state is saved."""


class Course:
    """The truth is `consumed_samples`; iteration, epoch and what a rank reads next follow from it."""

    def __init__(
        self,
        *,
        settings: Settings,
        world: World,
        restored: Restored,
        dataset: MapDataset,
        collate_fn: Callable[[list[Any]], Any] | None,
        emit: Emit,
        clock: Clock,
        likeness: Likeness | None = None,
    ) -> None:
        """`likeness`: how all workers compute, to be saved; None where it does not matter."""
        training = settings.training
        self.iteration = restored.iteration
        self.consumed_samples = restored.consumed_samples
        self.run_digest = restored.run_digest
        self._total_samples = training.steps * training.global_batch_size
        self._settings = settings
        self._world = world
        self._emit = emit
        self._clock = clock
        self._likeness = {} if likeness is None else {SAVED_AS: likeness.to_plain()}
        self._length = _length(dataset)
        order = Order(length=self._length, seed=training.seed, kind=OrderKind(settings.data.order.value))
        self._plan = BatchPlan(
            global_batch_size=training.global_batch_size,
            micro_batch_size=training.micro_batch_size,
            total_samples=self._total_samples,
        )
        self._loader = ElasticLoader(
            dataset,
            plan=self._plan,
            order=order,
            world_size=world.size,
            rank=world.rank,
            position=restored.consumed_samples,
            num_workers=settings.data.num_workers,
            collate_fn=collate_fn,
        )
        self._step_began_s = clock.monotonic_s()
        self._losses: deque[float] = deque(maxlen=_LOSSES)
        if world.rank == 0:
            emit(OrderChosen(length=order.length, seed=order.seed, order=order.kind.value, order_version=ORDER_VERSION))
            self._tell_scaling(restored)

    @property
    def finished(self) -> bool:
        """Whether all samples of the run are consumed."""
        return self.consumed_samples >= self._total_samples

    def next_step(self, group: Collectives, replicas: tuple[Replica, ...], regroup_wanted: Callable[[], bool]) -> Step:
        """The step that starts where the last one ended."""
        start, stop = self._plan.span(self.consumed_samples)
        parts = StepParts(
            group=group,
            replicas=replicas,
            loader=self._loader,
            device=self._world.device,
            seed=self._settings.training.seed,
            regroup_wanted=regroup_wanted,
            spread=Spread(self._plan.spread(self.consumed_samples, world_size=self._world.size)),
        )
        self._step_began_s = self._clock.monotonic_s()
        return Step(parts, iteration=self.iteration + 1, start=start, stop=stop)

    def commit(self, step: Step) -> bool:
        """Count a step that is done; returns whether the ranks agreed to regroup after it."""
        assert step.totals is not None  # Step.__exit__ refuses to be done without them
        self.iteration = step.iteration
        self.consumed_samples = step.stop
        self.run_digest = chain(self.run_digest, step.totals.digest)
        self._losses.append(step.totals.loss)
        self._loader.commit()
        self._emit(
            StepCommitted(
                iteration=self.iteration,
                start=step.start,
                stop=step.stop,
                ranges=ranges(sample for sample, _ in step.used),
                step_samples=step.totals.samples,
                step_digest=step.totals.digest,
                run_digest=self.run_digest,
                loss=step.totals.loss,
                world_size=self._world.size,
                seconds=self._clock.monotonic_s() - self._step_began_s,
            )
        )
        return step.totals.regroup

    def close(self) -> None:
        """End the loader's processes."""
        self._loader.close()

    def save_meta(self) -> SaveMeta:
        """What a checkpoint says about where it was taken."""
        training = self._settings.training
        epoch, position = epoch_of(self.consumed_samples, self._length)
        return SaveMeta(
            iteration=self.iteration,
            consumed_samples=self.consumed_samples,
            generation=self._world.generation,
            run_digest=self.run_digest,
            global_batch_size=training.global_batch_size,
            seed=training.seed,
            order_version=ORDER_VERSION,
            settings=to_plain(self._settings) | self._likeness,
            global_step=global_step_view(self.consumed_samples, training.global_batch_size),
            epoch_num=epoch,
            step_num=position // training.global_batch_size,
            signs=Signs(loss=self._losses[-1] if self._losses else None, earlier_losses=tuple(self._losses)[:-1]),
        )

    def _tell_scaling(self, restored: Restored) -> None:
        now = self._settings.training.global_batch_size
        if restored.iteration and restored.global_batch_size and restored.global_batch_size != now:
            saved_step = restored.consumed_samples // restored.global_batch_size
            scaled = scale_by_global_batch(saved_step, saved_global_batch=restored.global_batch_size, global_batch=now)
            self._emit(
                Notice(
                    text=f"global batch {restored.global_batch_size} -> {now}: {scaled.reason}; "
                    f"going on at sample {restored.consumed_samples} exactly"
                )
            )


def ranges(samples: Any) -> tuple[tuple[int, int], ...]:
    """Consecutive numbers as (start, stop) pairs, in the order given."""
    pairs: list[tuple[int, int]] = []
    for sample in samples:
        if pairs and pairs[-1][1] == sample:
            pairs[-1] = (pairs[-1][0], sample + 1)
        else:
            pairs.append((sample, sample + 1))
    return tuple(pairs)


def _length(dataset: MapDataset) -> int:
    try:
        length = len(dataset)
    except TypeError as error:
        raise DataError(
            f"{type(dataset).__name__} has no length; a map-style data set with __len__ and __getitem__ is needed"
        ) from error
    if length == 0:
        raise DataError(f"{type(dataset).__name__} is empty: there is nothing to train on")
    return length
