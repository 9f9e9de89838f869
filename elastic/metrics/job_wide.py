"""Job-wide metrics: every agent follows the whole job by what its own node sees, and only the leader shows it.

So a new leader goes on with what the last one had counted, and a sum over agents counts nothing twice. What it counts
right after it took over (the loss of the leader before) would be invisible: Prometheus sees no increase in the first
value of a series. Hence each scraper gets, once, what was counted at the moment of taking over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client.metrics_core import Metric

from elastic import events
from elastic.events import Record
from elastic.metrics import definitions as of
from elastic.metrics.continuity import Astray, Continuity
from elastic.metrics.time_book import TimeBook
from elastic.metrics.values import Values

FIRST_SHOWN_S = 120.0
"""For how long after taking over a scraper's first scrape gets what was counted until then."""
GAP_S = 15.0
"""A book that was written longer ago than this was nobody's meanwhile: the job was down."""


class JobWide:
    """Not thread-safe: its user holds a lock."""

    def __init__(self, *, is_leader: Callable[[], bool]) -> None:
        self._is_leader = is_leader
        self._values = Values(of.JOB_DEFINITIONS)
        self._time = TimeBook(lambda state, seconds: self._values.add(of.TIME, seconds, state))
        self._speaker: int | None = None
        self._generation = 0
        self._continuity = Continuity()
        self._budget: dict[str, int] = {}  # when nothing is spent
        self._budget_step = 0
        self._led_since_s: float | None = None
        self._first: list[Metric] = []
        self._readers: set[str] = set()

    def apply(self, record: Record, *, now_s: float) -> None:
        """Take an event of this node into account, or one that the leader tells of the job."""
        self._notice(now_s)
        if record.rank is not None and record.generation < self._generation:
            return  # a last word of what is over, whose ranks may be others' by now
        self._find_speaker(record)
        if record.rank is not None and record.rank != self._speaker:
            return
        self._time.apply(record, now_s=now_s)
        self._count(record)

    def ended(self, *, now_s: float) -> None:
        """This node found that its generation is over."""
        self._notice(now_s)
        self._time.ended(now_s)

    def shown(self, *, reader: str | None, now_s: float) -> list[Metric]:
        """What this agent exports of the job: nothing unless it leads. `reader` names a scraper, None anybody else."""
        self._notice(now_s)
        self._time.book(now_s)
        if self._led_since_s is None:
            return []
        if reader is not None and reader not in self._readers and now_s < self._led_since_s + FIRST_SHOWN_S:
            self._readers.add(reader)
            return self._first
        return self._values.collect()

    def to_plain(self, *, now_s: float) -> dict[str, Any]:
        """All of it as JSON, for an agent that comes later."""
        self._time.book(now_s)
        return {"state": self._time.state, "furthest": self._time.furthest, "values": self._values.to_plain()}

    def adopt(self, plain: Mapping[str, Any], *, gap_s: float, now_s: float) -> None:
        """Go on from what another agent counted `gap_s` ago; without effect on who shows its own already.

        Raises:
            KeyError, TypeError, ValueError: it is nothing that an agent of this version wrote.
        """
        if self._led_since_s is not None and self._is_leader():
            return
        state, furthest, values = str(plain["state"]), int(plain["furthest"]), plain["values"]
        self._time.book(now_s)
        self._values.adopt(values)
        self._time.adopt(state=state, gap_s=gap_s, furthest=furthest, patience_s=GAP_S)

    def _notice(self, now_s: float) -> None:
        if not self._is_leader():
            self._led_since_s = None
        elif self._led_since_s is None:
            self._led_since_s = now_s
            self._time.book(now_s)
            self._first = self._values.collect()
            self._readers.clear()

    def _find_speaker(self, record: Record) -> None:
        """One of this node's workers speaks for all: they take the same steps."""
        match record.event:
            case events.WorldFormed():
                self._speaker, self._generation = None, record.generation
            case events.WorkerStarted(worker_rank=rank) | events.WorkerStayed(worker_rank=rank):
                self._speaker = rank if self._speaker is None else min(self._speaker, rank)
            case _ if self._speaker is None:
                self._speaker = record.rank

    def _count(self, record: Record) -> None:
        match record.event:
            case events.AgentStarted(most_nodes=most) if most:
                self._values.set(of.TARGET_NODES, most)
            case events.WishHeard(max_nodes=most) if most:
                self._values.set(of.TARGET_NODES, most)
            case events.WorldFormed() as event:
                self._values.set(of.NODES_AWAITED, 0)
                if event.most_nodes:
                    self._values.set(of.TARGET_NODES, event.most_nodes)
                self._budget, self._budget_step = {}, event.budget_step
                for reason, left, most in event.budget:
                    self._budget[reason] = most
                    self._values.set(of.BUDGET, left, reason)
            case events.NodesAwaited() as event:
                self._values.set(of.NODES_AWAITED, event.needed - event.here)
            case events.JobEnded():
                self._values.set(of.NODES_AWAITED, 0)
            case events.Rescaled() as event:
                self._values.add(of.RESCALES, 1, event.direction, event.cause)
            case events.Recovered() as event:
                self._recovered(event)
            case events.Restored() as event:
                self._count_astray(self._continuity.restored(event))
            case events.StepCommitted() as event:
                self._step(event)

    def _recovered(self, event: events.Recovered) -> None:
        self._values.observe(of.RECOVERY_DURATION, event.seconds, event.path)
        self._values.set(of.LAST_RECOVERY, event.seconds)
        self._values.add(of.LOST_STEPS, event.lost_steps)
        for stage, seconds in event.stages:
            if stage in of.STAGES:
                self._values.observe(of.RECOVERY_STAGE, seconds, stage)

    def _count_astray(self, found: Astray) -> None:
        self._values.add(of.REPLAYED_SAMPLES, found.replayed)
        self._values.add(of.MISSED_SAMPLES, found.missed)
        self._values.add(of.CHANGED_SAMPLES, found.changed)

    def _step(self, event: events.StepCommitted) -> None:
        self._count_astray(self._continuity.committed(event))
        if event.iteration > self._budget_step:
            for reason, most in self._budget.items():
                self._values.set(of.BUDGET, most, reason)
            self._budget.clear()
        if event.skipped:
            self._values.add(of.SKIPPED_SAMPLES, event.stop - event.start)
            return
        self._values.add(of.STEPS_COMMITTED, 1)
        self._values.add(of.SAMPLES, event.stop - event.start)
        self._values.observe(of.STEP_DURATION, event.seconds)
        self._values.set(of.LOSS, event.loss)
