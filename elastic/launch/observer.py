"""The agent's ears: events of its workers and its own, to the event file, the metrics and the recovery watch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from elastic.clock import Clock
from elastic.events import (
    Cause,
    Direction,
    Event,
    EventFile,
    GroupReady,
    Record,
    Recovered,
    Rescaled,
    Restored,
    StepCommitted,
    WorkerStarted,
    WorkerStayed,
    decode,
)
from elastic.launch.recovery import RecoveryWatch
from elastic.launch.stall import Pace
from elastic.metrics.fold import Metrics
from elastic.rendezvous.model import World

logger = logging.getLogger(__name__)


class Observer:
    """Safe from any thread."""

    def __init__(
        self, *, node: str, file: EventFile, metrics: Metrics, clock: Clock, is_leader: Callable[[], bool],
        noted: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """`noted` is called after each event that is rarer than a step."""
        self._node = node
        self._file = file
        self._metrics = metrics
        self._clock = clock
        self._is_leader, self._noted = is_leader, noted
        self._generation = 0
        self._watch = RecoveryWatch()
        self._pace = Pace(advanced_s=clock.monotonic_s())
        self._lock = threading.Lock()

    @property
    def pace(self) -> Pace:
        """How the present generation advances on this node."""
        with self._lock:
            return self._pace

    @property
    def step(self) -> int:
        """The last step that this node saw committed."""
        with self._lock:
            return self._watch.step

    @property
    def committed_steps(self) -> int:
        """How many steps this node saw committed."""
        with self._lock:
            return self._watch.committed_steps

    def close(self) -> None:
        """Close the event file; nothing may be emitted any more."""
        self._file.close()

    def emit(self, event: Event) -> None:
        """An event of the agent itself."""
        record = self._record(event)
        try:
            self._file.append(record)
        except OSError as error:
            logger.error("an event could not be written (%s): %s", error, event)
        self._metrics.apply(record)
        self._noted()
        if isinstance(event, WorkerStarted | WorkerStayed):
            with self._lock:
                self._watch.reached("start", now_s=self._clock.monotonic_s())
                if isinstance(event, WorkerStarted):
                    self._watch.started(event.path)

    def fault(self, cause: Cause) -> None:
        """This node's part of the generation is over, now."""
        self._metrics.generation_ended()
        with self._lock:
            self._watch.fault(cause, generation=self._generation, now_s=self._clock.monotonic_s())

    def worker_said(self, line: str) -> None:
        """An encoded record of a worker. It is in the event file already."""
        record = decode(line)
        self._metrics.apply(record)
        if not isinstance(record.event, StepCommitted):
            self._noted()
        recovered: Recovered | None = None
        now_s = self._clock.monotonic_s()
        with self._lock:
            step = record.event.iteration if isinstance(record.event, StepCommitted) else None
            self._pace = self._pace.advanced(step=step, now_s=now_s)
            if isinstance(record.event, GroupReady):
                self._watch.reached("group", now_s=now_s)
            elif isinstance(record.event, Restored):
                self._watch.restored(record.event)
                self._watch.reached("restore", now_s=now_s)
            elif isinstance(record.event, StepCommitted):
                recovered = self._watch.committed(record.event, generation=record.generation, now_s=now_s)
        if recovered is not None and self._tell_of_job(recovered):
            logger.info(
                "going on after %s: %.2f s, %d steps to do again",
                recovered.cause,
                recovered.seconds,
                recovered.lost_steps,
            )

    def new_generation(self, world: World, *, previous: World | None) -> None:
        """A world was formed; the leader says how it differs from the one before."""
        self._generation = world.generation
        now_s = self._clock.monotonic_s()
        with self._lock:
            self._pace = Pace(advanced_s=now_s)
            self._watch.formed(now_s=now_s)
            self._watch.reached("agree", now_s=now_s)
        if previous is not None:
            for event in changes(previous, world):
                self._tell_of_job(event)

    def _tell_of_job(self, event: Event) -> bool:
        """What every agent finds out and only the leader tells. Returns whether it was told."""
        if self._is_leader():
            self.emit(event)
            return True
        self._metrics.apply(self._record(event))
        return False

    def _record(self, event: Event) -> Record:
        return Record(time_s=self._clock.wall_s(), node=self._node, rank=None, generation=self._generation, event=event)


def changes(previous: World, world: World) -> list[Event]:
    """How the membership differs between two generations."""
    before, here = (each.digest or {seat.agent for seat in each.seats} for each in (previous, world))
    old, new = previous.world_size, world.world_size
    if before == here and old == new:
        return []
    direction = Direction.UP if new > old else Direction.DOWN if new < old else Direction.SAME
    return [Rescaled(direction=direction, cause=world.cause, old_world_size=old, new_world_size=new)]
