"""Pacing: with save_interval auto, the distance of saves follows what saves, steps and failures turn out to cost."""

from __future__ import annotations

from pathlib import Path

from elastic.checkpoint.flight import SaveResult
from elastic.checkpoint.interval import Costs, advise, measure, next_steps, recent_records
from elastic.checkpoint.schedule import Schedule
from elastic.clock import Clock
from elastic.config.choices import SaveInterval
from elastic.config.model import CheckpointSettings
from elastic.distributed.group import Collectives
from elastic.events import Emit, Notice

_OLD = 0.7
"""Weight of what was known of a cost beside what was just measured."""


class Pacer:
    """Sets the distance of saves at each save. Every rank has one and calls `after_save`; rank 0 decides."""

    def __init__(
        self, checkpoint: CheckpointSettings, *, schedule: Schedule, group: Collectives, clock: Clock,
        emit: Emit, events: Path,
    ) -> None:  # fmt: skip
        """`events`: the directory of this run's events, for what happened before this start."""
        self._auto = checkpoint.save_interval is SaveInterval.AUTO and checkpoint.enable_save
        self._schedule, self._group, self._clock, self._emit = schedule, group, clock, emit
        self._every_steps = checkpoint.save_interleaved_steps
        self._at: tuple[int, float] | None = None
        self._costs = measure([])
        if not self._auto:
            return
        if group.rank == 0:
            self._costs = measure(recent_records(events))
        self._decide()

    def begin(self, iteration: int) -> None:
        """Steps are taken from here on."""
        self._at = (iteration, self._clock.monotonic_s())

    def after_save(self, saved: SaveResult | None) -> None:
        """Learn from a save that has just ended, and agree on the next distance. Raises PeerLost."""
        if not self._auto or saved is None or not saved.saved or not saved.total_bytes:
            return
        now_s = self._clock.monotonic_s()
        if self._at is not None and saved.iteration > self._at[0]:
            worked_s = max(0.0, now_s - self._at[1] - saved.stall_s)
            self._costs = Costs(
                save_s=_blend(self._costs.save_s, saved.stall_s),
                durable_s=_blend(self._costs.durable_s, saved.seconds),
                restore_s=self._costs.restore_s,
                step_s=_blend(self._costs.step_s, worked_s / (saved.iteration - self._at[0])),
                observed_s=self._costs.observed_s + worked_s,
                failures=self._costs.failures,
            )
        self._at = (saved.iteration, now_s)
        self._decide()

    def _decide(self) -> None:
        advice = advise(self._costs, every_steps=self._every_steps)
        steps = int(self._group.broadcast(next_steps(advice, every_steps=self._every_steps)))
        if steps != self._every_steps and self._group.rank == 0:
            self._emit(Notice(text=f"saves every {steps} steps instead of {self._every_steps}: {advice.reason}"))
        self._every_steps = steps
        self._schedule.pace(every_steps=steps)


def _blend(old: float | None, new: float) -> float:
    return new if old is None else _OLD * old + (1 - _OLD) * new
