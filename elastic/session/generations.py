"""Generations: how a worker goes from one to the next, with everything it has, and comes to stand where all stand.

Every member of a generation does the same in the same order: meet, settle on directories, come to one state (kept, or
given by who kept it, or restored), find the place in the data, step. A newcomer builds after the first two, or before
all of it: then it waits for its first place as others do for their next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, cast

from torch.optim import Optimizer

from elastic.activity import Activity, Doing
from elastic.checkpoint.restored import Restored
from elastic.checkpoint.root import claim, named_launch
from elastic.checkpoint.seams import Committer, LockCommitter
from elastic.clock import Clock
from elastic.config.choices import Numerics, PathScope, StrategyKind
from elastic.config.model import Settings
from elastic.distributed.group import Alone, Collectives
from elastic.distributed.likeness import check_alike, measure
from elastic.distributed.strategy import Strategy
from elastic.errors import Fenced, PeerLost, Regroup, StateElsewhere
from elastic.events import Notice
from elastic.link import Link
from elastic.plan.likeness import Likeness, recorded_in
from elastic.session.ahead import WorldToCome
from elastic.session.committer import choose_committer
from elastic.session.course import Course
from elastic.session.leaving import LeaveOnSignal
from elastic.session.meeting import all_new, leave, meet
from elastic.session.pacing import Pacer
from elastic.session.reporter import Reporter
from elastic.session.roots import open_manager, serve
from elastic.session.source import DataSource, with_slots
from elastic.session.staying import Staying
from elastic.session.step import Step
from elastic.session.stepping import Stepping
from elastic.session.tracked import track
from elastic.session.watched import watch
from elastic.world import World


class Generations:
    """One for each worker. What it opens is closed by `stack`."""

    def __init__(
        self, world: World, settings: Settings, *, link: Link, leaving: LeaveOnSignal, stack: ExitStack,
        environ: MutableMapping[str, str], clock: Clock,
    ) -> None:  # fmt: skip
        """Open what lasts for the whole life of this process; `enter` comes next, where there is a place."""
        self.world = world
        self._to_come = WorldToCome(world)
        watch(world)
        self.group: Collectives = Alone()
        self.course: Course | None = None
        self.stepping: Stepping | None = None
        self.strategies: list[Strategy] = []
        self.tracked: dict[str, Any] = {}
        self.listeners: list[Callable[[World], None]] = []
        """Called with the new world after a move."""
        self.newcomers = world.placed
        """Whether all members of this generation are at the same place of their program: nobody has been in the run."""
        self._entered, self._as_built = False, not world.placed
        self._settings, self._link, self._leaving, self._stack = settings, link, leaving, stack
        self._environ, self._clock = environ, clock
        save_path = settings.checkpoint.save_path
        self._shared = settings.checkpoint.save_path_scope is not PathScope.PRIVATE
        self._identity = claim(save_path, job_id=world.job_id, any_launch=self._shared)
        self.report = Reporter(world=world, link=link, save_path=save_path, clock=clock)
        stack.callback(self.report.close)
        self.report.tracking = track(settings, job_id=self._identity.job_id, emit=self.report, stack=stack)
        self._deals = settings.training.strategy is StrategyKind.FSDP2
        self.staying = Staying(link=link, allowed=settings.launch.rejoin)

    @property
    def known(self) -> World:
        """The world, as far as the job may know it."""
        return self.world if self.world.placed else cast(World, self._to_come)

    def enter(self) -> None:
        """Join the group of the first generation, and open the door to the checkpoints.

        Raises:
            PeerLost: somebody did not come. UsageError: save_path cannot be used.
        """
        self._meet()
        committer = self._committer(self.world)
        if isinstance(committer, LockCommitter):
            self._stack.callback(committer.close)
        self.manager = open_manager(
            self._settings.checkpoint,
            self._identity,
            world=self.world,
            group=self.group,
            committer=committer,
            clock=self._clock,
            emit=self.report,
        )
        self._stack.callback(self.manager.close)
        self._entered = True

    def steps(self, source: DataSource) -> Iterator[Step]:
        """Step after step, through any number of generations. Raises as `Session.steps`."""
        if not self.world.placed:
            self._to_come.check()
            self._move(source, lost=False, text="the job is built")
        else:
            if not self.newcomers:
                self._lay_out_anew()
            self._begin(source)
        self._stack.callback(self._close_course)
        self._stack.enter_context(self._leaving)  # not before: there is nothing to save until here
        while True:
            assert self.stepping is not None  # _begin made it
            try:
                yield from self.stepping.walk()
                return
            except (PeerLost, Regroup) as error:
                lost, text = isinstance(error, PeerLost), str(error)
                if not self.staying.possible or (not lost and self.stepping.saved and self._leaving.leaves()):
                    raise
            # Outside of the handler: a traceback keeps what its frames hold, the old group among it.
            self._move(source, lost=lost, text=text)

    def _move(self, source: DataSource, *, lost: bool, text: str) -> None:
        """Leave this generation and take part in the next one that comes about, which may be the first."""
        moved, activity = False, Activity.of(self.world)
        while not moved:
            activity.begin(Doing.STARTING)
            if self.course is not None:
                self.course.pause()
            leave(self.group, broken=lost)
            step = 0 if self.course is None else self.course.iteration
            saved = not lost and self.stepping is not None and self.stepping.saved
            world = self.staying.wait(
                lost=lost, generation=self.world.generation, step=step, text=text, environ=self._environ,
                ends=self._leaving.leaves if saved else lambda: False, idle=lambda: activity.begin(Doing.STARTING),
            )  # fmt: skip
            if world is None:
                if self.course is not None:
                    self._save_alone(self.course, source)
                raise self._leaving.ending(step)
            try:
                self._serve(replace(world, device=self.world.device))
                self._begin(source)
                moved = True
            except PeerLost as error:
                if not self.staying.possible:
                    raise
                lost, text = True, str(error)
        for call in self.listeners:
            call(self.world)

    def _save_alone(self, course: Course, source: DataSource) -> None:
        """Save what only workers that wait have, for all of them. Where others have gone on meanwhile it is refused.

        Of a state that is dealt out: the newest copy of which this node's memory has all parts, its guests' included.
        """
        dealt, reached = self._deals and self.world.size > 1, course.iteration
        if not dealt and not self.manager.intact:
            return
        self.world, self.group = replace(self.world, rank=0, size=1, goes_back=False), Alone()
        self._serve_roots(self.world, self.group)
        with suppress(Fenced):  # which was told
            if dealt:
                for strategy in self.strategies:
                    strategy.move(self.group)
                restored = self._recall()
                if restored is None or restored.tier != "memory":
                    since = f"from step {restored.iteration + 1} " if restored else ""
                    lost = f"all nodes go, and what was done {since}to step {reached} and not saved is lost"
                    self.report(Notice(text=f"{lost}: no copy of it has all its parts on this node"))
                    return
                course = self._course_from(restored, source)
            self.manager.save(self.tracked, course.standing_meta())

    def _recall(self) -> Restored | None:
        """What this node can restore alone; None where others may hold more."""
        try:
            return self.manager.restore(self.tracked)
        except StateElsewhere:
            return None

    def _meet(self) -> None:
        self.group = meet(self.world, link=self._link, emit=self.report, clock=self._clock)
        self.newcomers = all_new(self.group, stays=self.course is not None)

    def _serve(self, world: World) -> None:
        """Join another generation with everything that is there already. Raises PeerLost, Fenced."""
        self.world = world
        self._to_come.come(world)
        self.report.move(world)
        if self._entered:
            self._meet()
            self._serve_roots(world, self.group)
        else:
            self.enter()
        self._lay_out_anew()

    def _serve_roots(self, world: World, group: Collectives) -> None:
        serve(
            self.manager,
            self._settings.checkpoint,
            self._identity,
            world=world,
            group=group,
            committer=self._committer(world),
            clock=self._clock,
            emit=self.report,
        )

    def _lay_out_anew(self) -> None:
        """Who stays and who is new do this at the same place. What was dealt out has no values after it."""
        as_built, self._as_built = self._as_built, False
        if self.newcomers and not (as_built and self._can_start):
            self.staying.forbid()
            raise PeerLost(
                "nobody is in the run yet, and this worker cannot begin it with what it has: it starts again"
            )
        self.manager.intact = self.manager.intact and not self._deals
        for strategy in self.strategies:
            if self.newcomers:
                strategy.start(self.group)
            else:
                strategy.move(self.group)

    @property
    def _can_start(self) -> bool:
        """Whether what was built ahead may begin a run: not where dealing would lose what an optimizer has made."""
        kept = any(isinstance(each, Optimizer) and each.state for each in self.tracked.values())
        return not (self._deals and kept)

    def _begin(self, source: DataSource) -> None:
        """Come to one state with all others, and to the place in the data that belongs to it. Raises as `steps`."""
        restored = self._restore(source)
        if restored.tier == "none" and not self.newcomers:
            # What is in memory is neither a state of the run nor that of its beginning: new workers have the latter.
            self.staying.forbid()
            raise PeerLost("nothing was saved yet, and no worker's state can be gone on from")
        self.course = self._course_from(restored, source)
        pacer = Pacer(
            self._settings.checkpoint,
            schedule=self.manager.schedule,
            group=self.group,
            clock=self._clock,
            emit=self.report,
            events=self.report.path.parent,
        )
        self.stepping = Stepping(
            self._settings,
            course=self.course,
            manager=self.manager,
            pacer=pacer,
            tracked=self.tracked,
            strategies=self.strategies,
            group=self.group,
            leaving=self._leaving,
            staying=self.staying,
            emit=self.report,
        )
        self.stepping.begin(restored)

    def _course_from(self, restored: Restored, source: DataSource) -> Course:
        return Course(
            settings=self._settings,
            world=self.world,
            restored=restored,
            source=source,
            emit=self.report,
            clock=self._clock,
            group=self.group,
            likeness=self._likeness(restored),
            earlier=self.course,
        )

    def _restore(self, source: DataSource) -> Restored:
        if self.staying.general and not self.newcomers and not self._deals:
            standing = self.course if self.manager.intact else None
            meta = None if standing is None else standing.standing_meta()
            rejoined = self.manager.rejoin(self.tracked, meta)
            if rejoined is not None:
                own = standing.states if standing is not None and rejoined.tier == "process" else {}
                return with_slots(rejoined, source, own, group=self.group)
        return self.manager.restore(self.tracked)

    def _likeness(self, restored: Restored) -> Likeness | None:
        """How all workers compute, where that must be alike. Raises NumericsDiffer, PeerLost."""
        training = self._settings.training
        if training.numerics is not Numerics.EXACT:
            return None
        own = measure(training, device=self.world.device, environ=self._environ)
        check_alike(own, recorded=recorded_in(restored.settings) if restored.own else None, group=self.group)
        return own

    def _committer(self, world: World) -> Committer:
        save_path = self._settings.checkpoint.save_path
        launch = named_launch(world.job_id, self._identity) if self._shared else None
        return choose_committer(self._link, world=world, save_path=save_path, clock=self._clock, launch=launch)

    def _close_course(self) -> None:
        if self.course is not None:
            self.course.close()
