"""Metrics from events: the only way in, so that metrics, status and report cannot tell different stories.

Every agent applies the events of its own node. What would multiply in a sum over agents is taken from one of them
only: what is of the job from the leader (`job_wide`), what rank 0's worker alone does (saves) from its node.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from elastic import events
from elastic.clock import SYSTEM_CLOCK, Clock
from elastic.metrics import definitions as of
from elastic.metrics.job_wide import JobWide
from elastic.metrics.values import Values


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """Whether this agent takes part in a job, and why not."""

    ready: bool
    reason: str
    started: bool = True
    """Whether the agent is up at all."""


class Metrics(Collector):
    """What one agent exports. Thread-safe: events come from the agent, scrapes from the exporter."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK, is_leader: Callable[[], bool] = lambda: True) -> None:
        self.registry = CollectorRegistry()
        self._clock = clock
        self._lock = threading.Lock()
        self._values = Values(of.NODE_DEFINITIONS)
        self._job = JobWide(is_leader=is_leader)
        self._lease_until_s: Callable[[], float] | None = None
        self._cause = events.Cause.START
        self._first_generation: int | None = None
        self._readiness = Readiness(ready=False, reason="no agent has started here", started=False)
        self._handlers: dict[type[events.Event], Callable[[events.Record, Any], None]] = {
            events.AgentStarted: self._agent_started,
            events.RoundOpened: self._round_opened,
            events.WorldFormed: self._world_formed,
            events.NodesAwaited: self._nodes_awaited,
            events.NodeLost: self._node_lost,
            events.WorkerStarted: self._worker_started,
            events.WorkerStayed: self._worker_stayed,
            events.WorkerHung: self._worker_hung,
            events.LeaveAsked: self._leave_asked,
            events.ReplicasDiffered: self._replicas_differed,
            events.WorkerLost: self._worker_lost,
            events.JobEnded: self._job_ended,
            events.Restored: self._restored,
            events.StepCommitted: self._step_committed,
            events.Straggles: self._straggles,
            events.CheckpointSaved: self._checkpoint_saved,
            events.CheckpointFailed: self._checkpoint_failed,
            events.CheckpointRejected: self._checkpoint_rejected,
            events.StorageRetried: self._storage_retried,
            events.Fencing: self._fenced,
        }
        self.registry.register(self)

    def apply(self, record: events.Record) -> None:
        """Take one event of this node into account. Kinds that no metric is made of are ignored."""
        handler = self._handlers.get(type(record.event))
        with self._lock:
            self._job.apply(record, now_s=self._clock.monotonic_s())
            if handler is not None:
                handler(record, record.event)

    def generation_ended(self) -> None:
        """This node found that its generation is over; what of it happens next are events again."""
        with self._lock:
            self._job.ended(now_s=self._clock.monotonic_s())

    def watch_lease(self, until_s: Callable[[], float]) -> None:
        """Where to ask until when the agent's lease holds, on the clock's monotonic seconds."""
        self._lease_until_s = until_s

    def store_request(self, op: str, seconds: float, *, failed: bool) -> None:
        """A request to etcd came to its end."""
        self._values.observe(of.STORE_DURATION, seconds, op)
        if failed:
            self._values.add(of.STORE_ERRORS, 1, op)

    def collect(self, reader: str | None = None) -> Iterable[Metric]:
        """All metrics now, for prometheus_client. `reader` names the scraper that asks."""
        now_s = self._clock.monotonic_s()
        for tier in of.TIERS:
            saved_s = self._values.get(of.CHECKPOINT_TIME, tier)
            if saved_s is not None:
                self._values.set(of.CHECKPOINT_AGE, max(0.0, self._clock.wall_s() - saved_s), tier)
        if self._lease_until_s is not None:
            self._values.set(of.LEASE_LEFT, max(0.0, self._lease_until_s() - now_s))
        with self._lock:
            return [*self._values.collect(), *self._job.shown(reader=reader, now_s=now_s)]

    def readiness(self) -> Readiness:
        """Whether this agent is a member of a generation."""
        return self._readiness

    def node_plain(self) -> dict[str, Any]:
        """This node's counters as JSON, for an agent that takes its place."""
        return self._values.to_plain()

    def adopt_node(self, plain: Mapping[str, Any]) -> None:
        """Go on from another agent's `node_plain`. Raises TypeError, ValueError, KeyError: it is none."""
        self._values.adopt(plain)

    def job_plain(self) -> dict[str, Any]:
        """The job's counters as JSON, for an agent that comes later."""
        with self._lock:
            return self._job.to_plain(now_s=self._clock.monotonic_s())

    def adopt_job(self, plain: Mapping[str, Any], *, gap_s: float) -> None:
        """Go on from another agent's `job_plain`, made `gap_s` ago. Raises like `adopt_node`."""
        with self._lock:
            self._job.adopt(plain, gap_s=gap_s, now_s=self._clock.monotonic_s())

    def _agent_started(self, record: events.Record, event: events.AgentStarted) -> None:
        self._values.set(of.BUILD_INFO, 1, event.version, event.torch_version)
        self._values.set(of.JOB_INFO, 1, event.job_id, record.node)
        self._values.set(of.JOB_ACTIVE, 1)
        self._readiness = Readiness(ready=False, reason="waiting for the first generation")

    def _round_opened(self, record: events.Record, event: events.RoundOpened) -> None:
        self._cause = event.cause
        if event.cause is events.Cause.PAUSED:
            self._values.set(of.JOB_ACTIVE, 0)
        self._readiness = Readiness(ready=False, reason=f"between generations: {event.reason}")

    def _world_formed(self, record: events.Record, event: events.WorldFormed) -> None:
        self._cause = event.cause
        self._values.set(of.JOB_ACTIVE, 1)
        self._readiness = Readiness(ready=True, reason=f"member of generation {record.generation}")
        self._values.set(of.GENERATION, record.generation)
        self._values.set(of.WORLD_SIZE, event.world_size)
        self._values.set(of.NODES, event.node_count)
        self._values.observe(of.RENDEZVOUS_DURATION, event.seconds)

    def _nodes_awaited(self, record: events.Record, event: events.NodesAwaited) -> None:
        self._readiness = Readiness(ready=False, reason=f"waiting for a generation: {event.reason}")

    def _node_lost(self, record: events.Record, event: events.NodeLost) -> None:
        self._values.add(of.FAILURES_TOTAL, 1, events.Cause.NODE_LOST)

    def _worker_started(self, record: events.Record, event: events.WorkerStarted) -> None:
        if self._first_generation is None:
            self._first_generation = record.generation
        if record.generation > self._first_generation:  # A newcomer's first worker is no restart.
            self._values.add(of.RESTARTS, 1, self._cause, event.path)

    def _worker_stayed(self, record: events.Record, event: events.WorkerStayed) -> None:
        self._values.add(of.WORKERS_STAYED, 1)

    def _worker_hung(self, record: events.Record, event: events.WorkerHung) -> None:
        self._values.add(of.HANGS, 1)

    def _leave_asked(self, record: events.Record, event: events.LeaveAsked) -> None:
        self._values.add(of.LEAVES_ASKED, 1, event.source)

    def _replicas_differed(self, record: events.Record, event: events.ReplicasDiffered) -> None:
        self._values.add(of.REPLICAS_DIFFERED, len(event.ranks))

    def _worker_lost(self, record: events.Record, event: events.WorkerLost) -> None:
        if event.cause in of.FAILURES:
            self._values.add(of.FAILURES_TOTAL, 1, event.cause)

    def _job_ended(self, record: events.Record, event: events.JobEnded) -> None:
        self._values.set(of.JOB_ACTIVE, 0)
        self._readiness = Readiness(ready=False, reason=f"the job {event.outcome}: {event.reason}")

    def _restored(self, record: events.Record, event: events.Restored) -> None:
        self._values.set(of.STEP, event.iteration)
        self._values.set(of.CONSUMED_SAMPLES, event.consumed_samples)
        if record.rank in (0, None) and event.tier != "none":
            self._values.add(of.RESTORES, 1, event.tier)
        for tier, size_bytes, seconds in event.arrived:  # each rank's own
            self._values.add(of.RESTORE_BYTES, size_bytes, tier)
            self._values.add(of.RESTORE_TRANSFER, seconds, tier)

    def _step_committed(self, record: events.Record, event: events.StepCommitted) -> None:
        self._values.set(of.STEP, event.iteration)
        self._values.set(of.CONSUMED_SAMPLES, event.stop)
        self._values.set(of.LAST_STEP_TIME, record.time_s)
        self._values.set(of.DATA_DIGEST, event.run_digest)
        if event.own_s is not None:
            self._values.set(of.RANK_STEP_DURATION, event.own_s, str(event.local_rank))

    def _straggles(self, record: events.Record, event: events.Straggles) -> None:
        self._values.set(of.STRAGGLES, float(event.slow), str(event.local_rank))

    def _checkpoint_saved(self, record: events.Record, event: events.CheckpointSaved) -> None:
        if record.rank not in (0, None):
            return
        self._values.set(of.CHECKPOINT_TIME, record.time_s, event.tier)
        self._values.set(of.CHECKPOINT_STEP, event.iteration, event.tier)
        self._values.observe(of.CHECKPOINT_DURATION, event.seconds, event.tier)
        self._values.add(of.CHECKPOINT_BYTES, event.bytes, event.tier)
        self._values.add(of.CHECKPOINT_STALL, event.stall_s, event.tier)
        self._values.add(of.CHECKPOINT_SKIPPED, event.skipped, event.tier)
        if event.interval_s is not None:
            self._values.set(of.CHECKPOINT_INTERVAL, event.interval_s, event.tier)

    def _checkpoint_failed(self, record: events.Record, event: events.CheckpointFailed) -> None:
        if record.rank in (0, None) or event.tier == "peer":  # a node's own copy fails there, a save for all
            self._values.add(of.CHECKPOINT_FAILURES, 1, event.tier)

    def _checkpoint_rejected(self, record: events.Record, event: events.CheckpointRejected) -> None:
        if record.rank in (0, None):
            self._values.add(of.CHECKPOINT_FALLBACKS, 1)

    def _storage_retried(self, record: events.Record, event: events.StorageRetried) -> None:
        self._values.add(of.STORAGE_RETRIES, 1)

    def _fenced(self, record: events.Record, event: events.Fencing) -> None:
        self._values.add(of.FENCED_OPERATIONS, 1, event.what)
