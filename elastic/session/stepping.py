"""Stepping: from one step to the next. What is saved, copied, skipped or given up at each boundary, in one place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from elastic.activity import Doing
from elastic.checkpoint.manager import CheckpointManager
from elastic.checkpoint.places import share
from elastic.checkpoint.restored import Restored
from elastic.config.choices import OnNan
from elastic.config.model import Settings
from elastic.distributed.group import Collectives
from elastic.distributed.strategy import Strategy
from elastic.errors import CheckpointError, LossNotFinite, PeerLost, UsageError
from elastic.events import Emit, Notice, RunFinished
from elastic.session.course import Course
from elastic.session.leaving import LeaveOnSignal
from elastic.session.pacing import Pacer
from elastic.session.staying import Staying
from elastic.session.step import Step


class Stepping:
    """One generation's way through a run. Every rank makes one and calls its methods alike."""

    def __init__(
        self, settings: Settings, *, course: Course, manager: CheckpointManager, pacer: Pacer,
        tracked: Mapping[str, Any], strategies: Sequence[Strategy], group: Collectives, leaving: LeaveOnSignal,
        staying: Staying, emit: Emit,
    ) -> None:  # fmt: skip
        self.open_step: Step | None = None
        """The step that the user's loop is at."""
        self.saved = False
        """Whether the state in which this generation ended was saved."""
        self._settings, self._course, self._manager, self._pacer = settings, course, manager, pacer
        self._tracked, self._strategies, self._group = tracked, strategies, group
        self._leaving, self._staying, self._emit = leaving, staying, emit

    def begin(self, restored: Restored) -> None:
        """Before the first step."""
        if restored.own:
            self._take_up()
        self._pacer.begin(self._course.iteration)

    def walk(self) -> Iterator[Step]:
        """Yield step after step; what follows on a step is done when the next one is asked for. Raises as `steps`."""
        course, manager, pacer, activity = self._course, self._manager, self._pacer, self._course.activity
        scaled = any(isinstance(each, torch.amp.GradScaler) for each in self._tracked.values())
        doing = Doing.FIRST
        while not course.finished:
            step = course.next_step(
                self._group,
                tuple(self._strategies),
                self._leaving.wanted,
                lambda: manager.ready,
                due=lambda iteration, counted: manager.due(iteration, counted=counted),
                scaled=scaled,
                leave_wanted=self._leaving.leaves,
                stays=lambda: self._staying.possible,
                over=lambda: self._staying.over,
            )
            self.open_step = step
            activity.begin(doing)
            yield step
            doing = Doing.STEP
            activity.begin(Doing.BETWEEN)
            self.open_step = None
            if step.lost:
                raise PeerLost(step.lost)
            if not step.done:
                raise UsageError("a step from run.steps() must be used as `with step:`; it was not entered or failed")
            regroup = course.commit(step)
            self._staying.committed()
            if step.skipped:
                self._after_skip(step)
            activity.begin(Doing.FLUSH if manager.saving else Doing.SAVE)
            pacer.after_save(manager.advance(all_ready=step.totals is not None and step.totals.saves_ready))
            last = course.finished or (regroup and not self._keeps(step))
            if last or manager.due(course.iteration, counted=course.counted):
                activity.begin(Doing.FLUSH)
                saved = manager.save(self._tracked, course.save_meta(), wait=last)
                self.saved = saved.saved
                if course.finished and self._settings.checkpoint.enable_save and not saved.saved:
                    raise CheckpointError(f"the last step of the run could not be saved: {saved.reason}")
                pacer.after_save(saved.earlier)
                pacer.after_save(saved)
            elif manager.snapshot_due(course.iteration):
                manager.snapshot(self._tracked, course.save_meta())
            activity.begin(Doing.BETWEEN)
            if regroup and not course.finished:
                raise self._leaving.ending(course.iteration)
        activity.begin(Doing.STARTING)
        self._tell_finished()

    def _keeps(self, step: Step) -> bool:
        """Whether this state is kept for the next generation, so that there is no need to wait for a disk."""
        if step.totals is None or step.totals.leave:
            return False
        if not any(strategy.deals for strategy in self._strategies):
            return self._staying.possible
        # It is copies that are gone on from, once something was committed; and by all ranks alike.
        if not self._staying.general or not self._manager.schedule.committed:
            return False
        kept = self._manager.snapshot(self._tracked, self._course.save_meta())
        return all(share(self._group, kept))

    def _after_skip(self, step: Step) -> None:
        rolls_back = self._settings.training.on_nan is OnNan.ROLL_BACK
        text = f"{step.skipped}: {'back to the last save' if rolls_back else 'its samples are passed over'}"
        if self._group.rank == 0:
            self._emit(Notice(text=text))
        if not rolls_back:
            return
        self._manager.settle()
        restored = self._manager.restore(self._tracked, recall=False)
        if not restored.own:
            raise LossNotFinite(f"{step.skipped}, and nothing was saved yet that one could roll back to")
        self._course.roll_back(restored, skip_to=step.stop, reason=f"{step.skipped}: rolled back")
        # At once, so that copies in memory of what was given up go on from nothing any more.
        self._manager.save(self._tracked, self._course.save_meta())

    def commit_last(self) -> None:
        """A loop left with `break` has done its last step; it counts, and is saved, like any other.

        Raises:
            CheckpointError: it could not be saved, and no later step will be.
        """
        step, self.open_step = self.open_step, None
        if step is None or not step.begun:
            self._manager.settle()  # left between two steps, by all ranks at the same one
            return
        if not step.done:
            return  # others may be elsewhere
        self._course.commit(step)
        if step.skipped:
            self._after_skip(step)
        saved = self._manager.save(self._tracked, self._course.save_meta())
        if self._settings.checkpoint.enable_save and not saved.saved:
            raise CheckpointError(f"step {step.iteration}, at which the loop was left, was not saved: {saved.reason}")
        if self._course.finished:
            self._tell_finished()

    def _tell_finished(self) -> None:
        self._emit(RunFinished(iteration=self._course.iteration, consumed_samples=self._course.consumed_samples))

    def _take_up(self) -> None:
        """What a new generation begins with, so that the next fault finds no less than this one did."""
        if self._manager.schedule.behind(self._course.iteration):
            self._manager.save(self._tracked, self._course.save_meta(), wait=False)
        else:
            self._manager.snapshot(self._tracked, self._course.save_meta())
