"""Course: where a run stands, from restored position to last sample. Moves only when a step is committed."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from elastic.activity import Activity
from elastic.checkpoint.draft import SaveMeta
from elastic.checkpoint.places import share
from elastic.checkpoint.policy import Signs
from elastic.checkpoint.restored import Restored
from elastic.clock import Clock
from elastic.config.load import to_plain
from elastic.config.model import Settings
from elastic.data.digest import chain, skip_digest
from elastic.data.loader import ElasticLoader
from elastic.data.stream import ShardStream
from elastic.distributed.group import Alone, Collectives
from elastic.distributed.strategy import Strategy
from elastic.events import Emit, Evaluated, Notice, OrderChosen, StepCommitted, Straggles
from elastic.plan.batch import BatchPlan
from elastic.plan.batch_mode import Batching, BatchMode, batching
from elastic.plan.likeness import SAVED_AS, Likeness
from elastic.plan.order import ORDER_VERSION
from elastic.plan.progress import global_step_view, scale_by_global_batch
from elastic.plan.spans import ranges
from elastic.plan.straggling import Straggling
from elastic.plan.tree import Spread
from elastic.session.source import DataSource, settle
from elastic.session.spent import Spent
from elastic.session.step import Step, StepParts
from elastic.world import World

_LOSSES = 65
"""As many losses and gradient norms, the last one among them, as health is judged by when a state is saved."""


class Course:
    """The truth is `consumed_samples`; iteration, epoch and what a rank reads next follow from it."""

    def __init__(
        self,
        *,
        settings: Settings,
        world: World,
        restored: Restored,
        source: DataSource,
        emit: Emit,
        clock: Clock,
        group: Collectives | None = None,
        likeness: Likeness | None = None,
        earlier: Course | None = None,
    ) -> None:
        """`earlier`: this rank's course in the generation before; what it saw of the run's health is not forgotten.

        `group`: to find out whether all ranks see the same data; None: this rank is alone.
        `likeness`: how all workers compute, to be saved; None where it does not matter.

        Raises:
            DataError: the data cannot be used, or is not that of the restored run.
        """
        self._total_samples = settings.training.steps * settings.training.global_batch_size
        self._settings = settings
        self._world = world
        self._emit = emit
        self._clock = clock
        self.activity = Activity.of(world)
        self._group: Collectives = Alone() if group is None else group
        self._likeness = {} if likeness is None else {SAVED_AS: likeness.to_plain()}
        self._batching = _batching(settings, world)
        self._plan = BatchPlan(
            global_batch_size=self._batching.global_batch_size,
            micro_batch_size=settings.training.micro_batch_size,
            total_samples=self._total_samples,
        )
        self._settled = settle(source, settings, restored, self._plan, group=self._group)
        self._go_to(restored)
        self._known_states: Mapping[int, str] = self._settled.states
        self._loader = self._new_loader()
        self._spent = Spent(self.activity.total_s, clock=clock)
        self._losses: deque[float] = deque(maxlen=_LOSSES)
        self._grad_norm: float | None = None
        self._pace_s, self._straggling = 0.0, Straggling()
        self._grad_norms: deque[float] = deque(maxlen=_LOSSES)
        if earlier is not None and earlier.iteration == self.iteration:
            self._losses, self._grad_norms = earlier._losses, earlier._grad_norms
        if world.rank == 0:
            self._tell_order()
            self._tell_scaling(restored)
            self._tell_idle()

    def _go_to(self, restored: Restored) -> None:
        self.iteration = restored.iteration
        self.consumed_samples = self._before = restored.consumed_samples
        self.run_digest = restored.run_digest
        last = restored.data.get("last_step")
        self._last_step: tuple[int, int, int] | None = None if last is None else (last[0], last[1], last[2])

    def _new_loader(self) -> ElasticLoader:
        source = self._settled.source
        return ElasticLoader(
            source.dataset,
            plan=self._plan,
            order=self._settled.order,
            seed=self._settings.training.seed,
            world_size=self._world.size,
            rank=self._world.rank,
            position=self.consumed_samples,
            states=self._settled.states,
            collate_fn=source.collate_fn,
            transport=source.transport,
        )

    @property
    def finished(self) -> bool:
        """Whether all samples of the run are consumed."""
        return self.consumed_samples >= self._total_samples

    def next_step(
        self, group: Collectives, strategies: tuple[Strategy, ...], regroup_wanted: Callable[[], bool],
        save_ready: Callable[[], bool] = lambda: True, *, due: Callable[[int, range | None], bool] = lambda *_: False,
        scaled: bool = False, leave_wanted: Callable[[], bool] = lambda: False,
        stays: Callable[[], bool] = lambda: False, over: Callable[[], bool] = lambda: False,
    ) -> Step:  # fmt: skip
        """The step that starts where the last one ended. For what is not explained here see `StepParts`.

        `due`: whether a save follows the step of a number, which completes these counted ones; `scaled`: whether a
        GradScaler is in use.
        """
        start, stop = self._plan.span(self.consumed_samples)
        parts = StepParts(
            group=group,
            strategies=strategies,
            loader=self._loader,
            device=self._world.device,
            seed=self._settings.training.seed,
            regroup_wanted=regroup_wanted,
            leave_wanted=leave_wanted,
            stays=stays,
            over=over,
            rate_factor=self._batching.rate_factor,
            on_nan=self._settings.training.on_nan,
            spread=Spread(self._plan.spread(self.consumed_samples, world_size=self._world.size)),
            save_ready=save_ready,
            scaled=scaled,
            activity=self.activity,
            pace_s=self._pace_s,
            judged=due(self.iteration + 1, self._counted(start, stop)) or stop >= self._total_samples,
        )
        self._spent.begin(self.activity.total_s)
        return Step(parts, iteration=self.iteration + 1, start=start, stop=stop)

    @property
    def counted(self) -> range | None:
        """The steps of `global_batch_size` samples that the last step completed; None: exactly itself."""
        return self._counted(self._before, self.consumed_samples)

    def _counted(self, before: int, after: int) -> range | None:
        if self._settings.training.batch is BatchMode.FIXED_GLOBAL:
            return None
        size = self._settings.training.global_batch_size
        return range(before // size + 1, after // size + 1)

    def commit(self, step: Step) -> bool:
        """Count a step that is done; returns whether the ranks agreed to regroup after it."""
        assert step.totals is not None  # Step.__exit__ refuses to be done without them
        self._loader.commit()
        if step.skipped:
            self._count_skipped(step.stop, reason=step.skipped, loss=step.totals.loss)
            return step.totals.regroup
        self._losses.append(step.totals.loss)
        self._grad_norm = step.grad_norm
        if step.grad_norm is not None:
            self._grad_norms.append(step.grad_norm)
        self._last_step = (step.start, step.stop, step.totals.digest)
        self._look_at_pace(step.totals.paces_s)
        self._count(
            step.stop,
            ranges=ranges(sample for sample, _ in step.used),
            samples=step.totals.samples,
            digest=step.totals.digest,
            loss=step.totals.loss,
        )
        self._pace_s = step.pace_s(self._last_times.own_s)
        return step.totals.regroup

    def _look_at_pace(self, paces_s: Sequence[float]) -> None:
        before, now = self._straggling, self._straggling.after(paces_s, rank=self._world.rank)
        self._straggling, place = now, self._world.local_rank
        if now.slow != before.slow:
            self._emit(Straggles(slow=now.slow, own_s=now.own_s, others_s=now.others_s, local_rank=place))

    def roll_back(self, restored: Restored, *, skip_to: int, reason: str) -> None:
        """Stand where a restored state stands, and pass over the samples up to `skip_to` for good."""
        self._go_to(restored)
        self._count_skipped(skip_to, reason=reason, loss=math.nan)
        self._loader.move(position=skip_to, world_size=self._world.size, rank=self._world.rank)

    def _count_skipped(self, stop: int, *, reason: str, loss: float) -> None:
        self._last_step = None
        digest = skip_digest(self.consumed_samples, stop)
        self._count(stop, ranges=(), samples=0, digest=digest, loss=loss, skipped=reason)

    def _count(
        self,
        stop: int,
        *,
        ranges: tuple[tuple[int, int], ...],
        samples: int,
        digest: int,
        loss: float,
        skipped: str = "",
    ) -> None:
        self.iteration += 1
        self._before, self.consumed_samples = self.consumed_samples, stop
        self.run_digest = chain(self.run_digest, digest)
        spent = self._last_times = self._spent.end(self.activity.total_s)
        self._emit(
            StepCommitted(
                iteration=self.iteration,
                start=self._before,
                stop=stop,
                ranges=ranges,
                step_samples=samples,
                step_digest=digest,
                run_digest=self.run_digest,
                loss=loss,
                world_size=self._world.size,
                seconds=spent.seconds,
                skipped=skipped,
                own_s=spent.own_s,
                data_s=spent.data_s,
                save_s=spent.save_s,
                local_rank=self._world.local_rank,
            )
        )

    def evaluated(self, values: Mapping[str, float], open_step: Step | None) -> Evaluated:
        """What was measured, and where: behind a step that is done, though the loop has not come back yet."""
        done = open_step is not None and open_step.done and not open_step.skipped
        iteration, samples = self.iteration, self.consumed_samples
        if open_step is not None and done:
            iteration, samples = open_step.iteration, open_step.stop
        return Evaluated(iteration=iteration, consumed_samples=samples, values=tuple(sorted(values.items())))

    @property
    def states(self) -> Mapping[int, str]:
        """Where the slots of a stream stand that this rank has run."""
        return self._loader.states

    def pause(self) -> None:
        """Drop what was fetched and not committed. The position stays."""
        self._loader.close()

    def close(self) -> None:
        """End the loader's processes."""
        self._loader.close()

    def save_meta(self) -> SaveMeta:
        """What a checkpoint says about where it was taken. Every rank calls it. Raises PeerLost."""
        self._known_states = self._all_states()
        return self._meta()

    def standing_meta(self) -> SaveMeta:
        """The same of this rank alone: where it stands, for others to go on from. Without what only others know."""
        self._known_states = {**self._known_states, **self._loader.states}
        return self._meta()

    def _meta(self) -> SaveMeta:
        training = self._settings.training
        epoch, position = self._settled.order.epoch_of(self.consumed_samples)
        return SaveMeta(
            iteration=self.iteration,
            consumed_samples=self.consumed_samples,
            generation=self._world.generation,
            run_digest=self.run_digest,
            global_batch_size=self._batching.global_batch_size,
            seed=training.seed,
            order_version=ORDER_VERSION,
            settings=to_plain(self._settings) | self._likeness,
            global_step=global_step_view(self.consumed_samples, self._batching.global_batch_size),
            epoch_num=epoch,
            step_num=position // self._batching.global_batch_size,
            data=self._settled.to_plain(states=self._known_states, last=self._last_step),
            signs=Signs(
                loss=self._losses[-1] if self._losses else None,
                earlier_losses=tuple(self._losses)[:-1],
                grad_norm=self._grad_norm,
                earlier_grad_norms=tuple(self._grad_norms)[: -1 if self._grad_norm is not None else None],
            ),
        )

    def _all_states(self) -> dict[int, str]:
        """Where the slots of a stream stand, of all ranks; on all, since each may keep the only copy in memory."""
        if not isinstance(self._settled.source.dataset, ShardStream):
            return {}
        everyone = share(self._group, {str(slot): text for slot, text in self._loader.states.items()})
        return {int(slot): text for states in everyone for slot, text in states.items()}

    def _tell_order(self) -> None:
        order = self._settled.order
        plain = order.to_plain()
        self._emit(
            OrderChosen(
                length=order.length,
                seed=self._settings.training.seed,
                order=plain["segments"][-1]["order"]["kind"],
                order_version=ORDER_VERSION,
                segments=json.dumps(plain),
            )
        )
        if self._settled.told:
            self._emit(Notice(text=self._settled.told))
        if self._settings.training.batch is BatchMode.PER_RANK:
            self._emit(Notice(text=self._batching.reason))

    def _tell_scaling(self, restored: Restored) -> None:
        now = self._batching.global_batch_size
        if restored.iteration and restored.global_batch_size and restored.global_batch_size != now:
            saved_step = restored.consumed_samples // restored.global_batch_size
            scaled = scale_by_global_batch(saved_step, saved_global_batch=restored.global_batch_size, global_batch=now)
            self._emit(
                Notice(
                    text=f"global batch {restored.global_batch_size} -> {now}: {scaled.reason}; "
                    f"going on at sample {restored.consumed_samples} exactly"
                )
            )

    def _tell_idle(self) -> None:
        training, size = self._settings.training, self._world.size
        slots = -(-training.global_batch_size // training.micro_batch_size)
        if size > slots:
            text = f"{size - slots} of {size} workers have nothing to do: the global batch of "
            text += f"{training.global_batch_size} is {slots} micro-batches of {training.micro_batch_size}"
            self._emit(Notice(text=text))


def _batching(settings: Settings, world: World) -> Batching:
    training = settings.training
    return batching(
        training.batch,
        world_size=world.size,
        global_batch_size=training.global_batch_size,
        rank_batch_size=training.rank_batch_size or training.global_batch_size,
        rule=training.rate_rule,
    )
