"""Session: the user's own loop inside a run that survives.

    with elastic.Session(global_batch_size=96, steps=1000) as run:
        model = run.parallelize(build_model(run.world))
        optimizer = torch.optim.AdamW(model.parameters())
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(dataset):
            with step:
                for batch in step.micro_batches():
                    step.backward(loss(model, batch))
                optimizer.step()

Everything that depends on the world is built inside the `with`. Leaving `with step:` commits the step. Where a peer is
lost in it the block ends, `step.lost` says why, and the same step comes again, in another world: what follows on the
block in the loop belongs under `if step.done:`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from elastic.activity import Activity, Doing
from elastic.clock import SYSTEM_CLOCK, Clock
from elastic.config.load import resolve, with_overrides
from elastic.config.model import Settings
from elastic.data.carrier import Transport
from elastic.data.fetch import Collate
from elastic.distributed.group import Alone
from elastic.distributed.joining import choose_device
from elastic.errors import UsageError
from elastic.lifetime import die_with_agent
from elastic.link import Link, NoLink
from elastic.session.allocator import keep_freed_memory
from elastic.session.ending import end_worker
from elastic.session.evaluation import Measure, evaluate
from elastic.session.generations import Generations
from elastic.session.leaving import LeaveOnSignal
from elastic.session.parallel import check_tracked, lay_out
from elastic.session.place import check_same_root, connect
from elastic.session.randomness import seed_everything
from elastic.session.source import DataSource
from elastic.session.step import Step
from elastic.world import World


class Session:
    """A context manager; see the module's docstring for the whole of its use."""

    def __init__(
        self,
        *,
        settings: Settings | None = None,
        environ: MutableMapping[str, str] = os.environ,
        clock: Clock = SYSTEM_CLOCK,
        **overrides: Any,
    ) -> None:
        """Settings come from `settings`, else from file, environment and command line; `overrides` beat them all.

        Args:
            overrides: any field of the sections training, data and checkpoint, by its bare name:
                global_batch_size=96, steps=1000, save_path="…".
        """
        self._given = settings
        self._overrides = overrides
        self._environ = environ
        self._clock = clock
        self._first = World.from_environ(environ)
        self._link: Link = NoLink()
        self._life: Generations | None = None
        self._leaving = LeaveOnSignal(link=lambda: self._link)
        self._stack = ExitStack()

    @property
    def world(self) -> World:
        """This worker's place in the present generation."""
        return self._first if self._life is None else self._life.known

    def __enter__(self) -> Self:
        """Join the group of this generation.

        Raises:
            SystemExit: with a documented exit code and one message, for whatever is wrong.
        """
        try:
            self._open()
        except BaseException as error:
            # `with` calls __exit__ only for what happens inside it.
            self._end(error)
            raise
        return self

    def _open(self) -> None:
        die_with_agent(self._environ)
        keep_freed_memory()
        self._link = connect(self._first)  # first, so that the agent hears of whatever goes wrong
        resolved = self._given or resolve(sys.argv[1:], environ=self._environ, strict=False).settings
        self.settings = with_overrides(resolved, self._overrides) if self._overrides else resolved
        world = choose_device(self._first)
        check_same_root(world, self.settings.checkpoint.save_path)
        life = self._life = Generations(
            world,
            self.settings,
            link=self._link,
            leaving=self._leaving,
            stack=self._stack,
            environ=self._environ,
            clock=self._clock,
        )
        if self.settings.training.threads_per_worker:
            torch.set_num_threads(self.settings.training.threads_per_worker)
        if world.placed:
            life.enter()
        seed_everything(self.settings.training.seed)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            life = self._opened
            if error is None and life.stepping is not None:
                life.stepping.commit_last()
            elif isinstance(error, Exception) and life.world.size == 1 and life.course is not None:
                life.manager.settle()  # with no peers to wait for, what was begun is still brought to its end
        except BaseException as failed:
            self._end(failed)
            raise
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        life = self._life
        step = life.course.iteration if life is not None and life.course is not None else 0
        try:
            self._stack.close()
        finally:
            end_worker(error, link=self._link, group=Alone() if life is None else life.group, step=step)

    @property
    def _opened(self) -> Generations:
        if self._life is None:
            raise UsageError("a Session is used inside of `with elastic.Session(...) as run:`")
        return self._life

    def parallelize(self, model: nn.Module) -> nn.Module:
        """Put a model on this worker's device, equal on all ranks, as training.strategy says; returns the module.

        With fsdp2 its parameters are dealt out: make the optimizer of what is returned, and track it.

        Buffers are not summed over ranks: BatchNorm normalises each micro-batch by itself, and its running statistics
        are those of rank 0's samples, so that they depend on the world size. Layers that wait for other ranks in
        their forward pass (SyncBatchNorm) hang, since ranks differ in how many micro-batches they run.
        """
        life = self._opened
        model = model.to(life.world.device)
        strategy = lay_out(model, self.settings, world=life.world, group=life.group, align=life.newcomers)
        life.strategies.append(strategy)
        for each in life.strategies:
            each.overlap = len(life.strategies) == 1
        return strategy.model

    def track(self, **objects: Any) -> None:
        """Name what a checkpoint holds: anything with state_dict and load_state_dict. The names are the file's.

        Raises:
            UsageError: a name used twice, an object without the two methods, or one that cannot be used with fsdp2.
        """
        life = self._opened
        for name, value in objects.items():
            if name in life.tracked:
                raise UsageError(f"track({name}=…) was called twice; every tracked object needs a name of its own")
            check_tracked(name, value, life.strategies)
            if isinstance(value, torch.optim.Optimizer):
                life.staying.watch(value)
                for strategy in life.strategies:
                    strategy.adopt(value)
            life.tracked[name] = value

    def on_world_change(self, call: Callable[[World], None]) -> None:
        """Have something called with the new world whenever this process has come to another one with its state: for
        what the job made from the world itself. In the order in which they were given."""
        self._opened.listeners.append(call)

    def loader(
        self,
        dataset: Any,
        *,
        collate_fn: Collate | None = None,
        num_workers: int | None = None,
        prefetch_factor: int | None = None,
        pin_memory: bool = False,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | None = None,
    ) -> DataSource:
        """A data set with the options of a DataLoader, for `steps`. Which samples a batch holds is the run's to say.

        Args:
            dataset: map-style, or a MixedDataset, or a ShardStream; the same on every rank.
            num_workers: loader processes of each rank; None: data.num_workers.
        """
        transport = Transport(
            num_workers=self.settings.data.num_workers if num_workers is None else num_workers,
            prefetch_factor=prefetch_factor,
            pin_memory=pin_memory,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
        )
        return DataSource(dataset=dataset, collate_fn=collate_fn, transport=transport)

    def evaluate(self, dataset: Any, measure: Measure, *, collate_fn: Collate | None = None) -> dict[str, float]:
        """Measure a model on every item of a map-style data set, once: the same numbers at any world size.

        Args:
            measure: of one micro-batch, on this worker's device: name -> (sum, weight), as with losses.

        Returns:
            name -> sum of all sums over sum of all weights, on every rank. All ranks must call this alike. It is an
            event too, once there are steps.
        """
        life = self._opened
        activity = Activity.of(life.world) if life.course is None else life.course.activity
        with activity.during(Doing.EVALUATION):
            found = self._evaluate(life, dataset, measure, collate_fn)
        if life.world.rank == 0 and life.course is not None:
            step = None if life.stepping is None else life.stepping.open_step
            life.report(life.course.evaluated(found, step))
        return found

    def _evaluate(
        self, life: Generations, dataset: Any, measure: Measure, collate_fn: Collate | None
    ) -> dict[str, float]:
        return evaluate(
            self.loader(dataset, collate_fn=collate_fn),
            measure,
            # Before its steps a newcomer is alone with it: the others are under way.
            group=life.group if life.newcomers or life.stepping is not None else Alone(),
            device=life.world.device,
            batch_size=self.settings.training.micro_batch_size,
            seed=self.settings.training.seed,
            lockstep=any(each.lockstep for each in life.strategies),
        )

    def steps(self, data: Any, *, collate_fn: Collate | None = None) -> Iterator[Step]:
        """Restore what is tracked, then yield the steps still to do. All ranks must leave the loop at the same step.

        Args:
            data: what `loader` gave; or a data set, for one with the settings' options.

        Raises:
            DataError: the data cannot be used, or is not what the saved run was using.
            NothingToRestore: load_path was given and holds nothing to restore.
            Regroup: from inside the loop, when the membership changes and this worker cannot stay; the state was saved.
            Preempted: the same without an agent of ours, on a signal.
            CheckpointError: the last step could not be saved, so that the run is not finished.
        """
        if not self._opened.strategies:
            raise UsageError("run.steps() was called before run.parallelize(model); there is nothing to train")
        yield from self._opened.steps(
            data if isinstance(data, DataSource) else self.loader(data, collate_fn=collate_fn)
        )
