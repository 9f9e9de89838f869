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
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from elastic.checkpoint.restored import Restored
from elastic.checkpoint.root import claim
from elastic.checkpoint.seams import LockCommitter
from elastic.clock import SYSTEM_CLOCK, Clock
from elastic.config.load import resolve, with_overrides
from elastic.config.model import Numerics, Settings
from elastic.data.carrier import Transport
from elastic.data.fetch import Collate
from elastic.distributed.group import Alone, Collectives, choose_device
from elastic.distributed.likeness import check_alike, measure
from elastic.distributed.strategy import Strategy
from elastic.errors import PeerLost, Regroup, UsageError
from elastic.lifetime import die_with_agent
from elastic.link import Link, NoLink
from elastic.plan.likeness import Likeness, recorded_in
from elastic.session.committer import choose_committer
from elastic.session.course import Course
from elastic.session.ending import end_worker
from elastic.session.evaluation import Measure, evaluate
from elastic.session.leaving import LeaveOnSignal
from elastic.session.meeting import all_new, leave, meet
from elastic.session.pacing import Pacer
from elastic.session.parallel import check_tracked, lay_out
from elastic.session.place import check_same_root, connect
from elastic.session.randomness import seed_everything
from elastic.session.reporter import Reporter
from elastic.session.roots import open_manager, serve
from elastic.session.source import DataSource, with_slots
from elastic.session.staying import Staying
from elastic.session.step import Step
from elastic.session.stepping import Stepping
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
        self.world = World.from_environ(environ)
        self._environ = environ
        self._clock = clock
        self._tracked: dict[str, Any] = {}
        self._strategies: list[Strategy] = []
        self._group: Collectives = Alone()
        self._link: Link = NoLink()
        self._course: Course | None = None
        self._stepping: Stepping | None = None
        self._leaving = LeaveOnSignal(link=lambda: self._link)
        self._listeners: list[Callable[[World], None]] = []
        self._stack = ExitStack()

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
        self._link = connect(self.world)  # first, so that the agent hears of whatever goes wrong
        resolved = self._given or resolve(sys.argv[1:], environ=self._environ, strict=False).settings
        self.settings = with_overrides(resolved, self._overrides) if self._overrides else resolved
        allowed = self.settings.launch.rejoin
        self._staying = Staying(
            link=lambda: self._link, strategies=self._strategies, leaving=self._leaving, allowed=allowed
        )
        world = choose_device(self.world)
        save_path = self.settings.checkpoint.save_path
        check_same_root(world, save_path)
        self._identity = claim(save_path, job_id=world.job_id)
        self._report = Reporter(world=world, link=self._link, save_path=save_path, clock=self._clock)
        self._stack.callback(self._report.close)
        if self.settings.training.threads_per_worker:
            torch.set_num_threads(self.settings.training.threads_per_worker)
        self._enter(world)
        committer = choose_committer(self._link, world=world, save_path=save_path, clock=self._clock)
        if isinstance(committer, LockCommitter):
            self._stack.callback(committer.close)
        self._manager = open_manager(
            self.settings.checkpoint,
            self._identity,
            world=world,
            group=self._group,
            committer=committer,
            clock=self._clock,
            emit=self._report,
        )
        self._stack.callback(self._manager.close)
        seed_everything(self.settings.training.seed)

    def _enter(self, world: World) -> None:
        """Join the group of a generation. Raises PeerLost."""
        self._report.move(world)
        self._group = meet(world, link=self._link, emit=self._report, clock=self._clock)
        self.world = world
        self._newcomers = all_new(self._group, stays=self._course is not None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None and self._stepping is not None:
                self._stepping.commit_last()
            elif isinstance(error, Exception) and self.world.size == 1 and self._course is not None:
                self._manager.settle()  # with no peers to wait for, what was begun is still brought to its end
        except BaseException as failed:
            self._end(failed)
            raise
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        step = self._course.iteration if self._course is not None else 0
        try:
            self._stack.close()
        finally:
            end_worker(error, link=self._link, group=self._group, step=step)

    def parallelize(self, model: nn.Module) -> nn.Module:
        """Put a model on this worker's device, equal on all ranks, as training.strategy says; returns the module.

        With fsdp2 its parameters are dealt out: make the optimizer of what is returned, and track it.

        Buffers are not summed over ranks: BatchNorm normalises each micro-batch by itself, and its running statistics
        are those of rank 0's samples, so that they depend on the world size. Layers that wait for other ranks in
        their forward pass (SyncBatchNorm) hang, since ranks differ in how many micro-batches they run.
        """
        model = model.to(self.world.device)
        strategy = lay_out(model, self.settings, world=self.world, group=self._group, align=self._newcomers)
        self._strategies.append(strategy)
        for each in self._strategies:
            each.overlap = len(self._strategies) == 1
        return strategy.model

    def track(self, **objects: Any) -> None:
        """Name what a checkpoint holds: anything with state_dict and load_state_dict. The names are the file's.

        Raises:
            UsageError: a name used twice, an object without the two methods, or one that cannot be used with fsdp2.
        """
        for name, value in objects.items():
            if name in self._tracked:
                raise UsageError(f"track({name}=…) was called twice; every tracked object needs a name of its own")
            check_tracked(name, value, self._strategies)
            if isinstance(value, torch.optim.Optimizer):
                self._staying.watch(value)
                for strategy in self._strategies:
                    strategy.adopt(value)
            self._tracked[name] = value

    def on_world_change(self, call: Callable[[World], None]) -> None:
        """Have something called with the new world whenever this process has come to another one with its state: for
        what the job made from the world itself. In the order in which they were given."""
        self._listeners.append(call)

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
        found = evaluate(
            self.loader(dataset, collate_fn=collate_fn),
            measure,
            # Before its steps a newcomer is alone with it: the others are under way.
            group=self._group if self._newcomers or self._stepping is not None else Alone(),
            device=self.world.device,
            batch_size=self.settings.training.micro_batch_size,
            seed=self.settings.training.seed,
            lockstep=any(each.lockstep for each in self._strategies),
        )
        if self.world.rank == 0 and self._course is not None:
            step = None if self._stepping is None else self._stepping.open_step
            self._report(self._course.evaluated(found, step))
        return found

    def steps(self, data: Any, *, collate_fn: Collate | None = None) -> Iterator[Step]:
        """Restore what is tracked, then yield the steps still to do. All ranks must leave the loop at the same step.

        Args:
            data: what `loader` gave; or a data set, for one with the settings' options.

        Raises:
            DataError: the data cannot be used, or is not what the saved run was using.
            NothingToRestore: load_path was given and holds nothing to restore.
            Regroup: from inside the loop, when the membership is about to change; the state was saved before.
            Preempted: the same without an agent of ours, on a signal.
            CheckpointError: the last step could not be saved, so that the run is not finished.
        """
        if not self._strategies:
            raise UsageError("run.steps() was called before run.parallelize(model); there is nothing to train")
        source = data if isinstance(data, DataSource) else self.loader(data, collate_fn=collate_fn)
        self._begin(source)
        self._stack.enter_context(self._leaving)  # not before: there is nothing to save until here
        while True:
            assert self._stepping is not None  # _begin made it
            try:
                yield from self._stepping.walk()
                return
            except (PeerLost, Regroup) as error:
                if not self._staying.possible:
                    raise
                lost, text = isinstance(error, PeerLost), str(error)
            # Outside of the handler: a traceback keeps what its frames hold, the old group among it.
            self._move(source, lost=lost, text=text)

    def _move(self, source: DataSource, *, lost: bool, text: str) -> None:
        """Leave this generation and take part in the next one that comes about."""
        assert self._course is not None  # there were steps
        while True:
            self._course.pause()
            leave(self._group, broken=lost)
            world = self._staying.wait(
                lost=lost, generation=self.world.generation, step=self._course.iteration, text=text,
                environ=self._environ,
            )  # fmt: skip
            try:
                self._serve(replace(world, device=self.world.device))
                self._begin(source)
            except PeerLost as error:
                lost, text = True, str(error)
            else:
                break
        for call in self._listeners:
            call(self.world)

    def _serve(self, world: World) -> None:
        """Join another generation with everything that is there already. Raises PeerLost, Fenced."""
        self._enter(world)
        save_path = self.settings.checkpoint.save_path
        committer = choose_committer(self._link, world=world, save_path=save_path, clock=self._clock)
        serve(self._manager, self.settings.checkpoint, self._identity, world=world, group=self._group,
              committer=committer, clock=self._clock, emit=self._report)  # fmt: skip
        for strategy in self._strategies:
            strategy.move(self._group)

    def _begin(self, source: DataSource) -> None:
        """Come to one state with all others, and to the place in the data that belongs to it. Raises as `steps`."""
        earlier = self._course
        restored = self._restore(source)
        if restored.tier == "none" and not self._newcomers:
            for strategy in self._strategies:
                strategy.align()
        course = self._course = Course(
            settings=self.settings,
            world=self.world,
            restored=restored,
            source=source,
            emit=self._report,
            clock=self._clock,
            group=self._group,
            likeness=self._likeness(restored),
            earlier=earlier,
        )
        if earlier is None:
            self._stack.callback(self._close_course)
        pacer = Pacer(
            self.settings.checkpoint,
            manager=self._manager,
            group=self._group,
            clock=self._clock,
            emit=self._report,
            events=self._report.path.parent,
        )
        self._stepping = Stepping(
            self.settings,
            course=course,
            manager=self._manager,
            pacer=pacer,
            tracked=self._tracked,
            strategies=self._strategies,
            group=self._group,
            leaving=self._leaving,
            staying=self._staying,
            emit=self._report,
        )
        self._stepping.begin(restored)

    def _restore(self, source: DataSource) -> Restored:
        if self._staying.general and not self._newcomers:
            standing = self._course if self._course is not None and self._manager.intact else None
            meta = None if standing is None else standing.standing_meta()
            rejoined = self._manager.rejoin(self._tracked, meta)
            if rejoined is not None:
                own = standing.states if standing is not None and rejoined.tier == "process" else {}
                return with_slots(rejoined, source, own, group=self._group)
        return self._manager.restore(self._tracked)

    def _close_course(self) -> None:
        if self._course is not None:
            self._course.close()

    def _likeness(self, restored: Restored) -> Likeness | None:
        """How all workers compute, where that must be alike. Raises NumericsDiffer, PeerLost."""
        training = self.settings.training
        if training.numerics is not Numerics.EXACT:
            return None
        own = measure(training, device=self.world.device, environ=self._environ)
        check_alike(own, recorded=recorded_in(restored.settings) if restored.own else None, group=self._group)
        return own
