"""Status: what a run is doing now and why, folded from its records. Pure; rendering is apart.

Of a job that several nodes tell of, the newest generation counts: what a late node says of an older one changes that
node's row only.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from elastic import events
from elastic.events import Cause, Outcome, Record
from elastic.observe.pace import Pace

_SILENT_S = 60.0
_SILENT_STEPS = 10


class State(enum.StrEnum):
    """What a job or a node is doing, in words."""

    UNKNOWN = "not started"
    WAITING = "waiting for nodes"
    BETWEEN = "between generations"
    PAUSED = "paused"
    STARTING = "starting workers"
    RESTORING = "restoring"
    FIRST_STEP = "taking its first step"
    TRAINING = "training"
    SILENT = "silent"
    LOST = "lost"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def is_end(self) -> bool:
        """Whether nothing more is to come by itself."""
        return self in (State.FINISHED, State.STOPPED, State.FAILED, State.LOST)

    @property
    def may_be_silent(self) -> bool:
        """Whether nobody needs to say anything for as long as it lasts."""
        return self.is_end or self is State.PAUSED


_ENDS = {Outcome.SUCCEEDED: State.FINISHED, Outcome.FAILED: State.FAILED, Outcome.PREEMPTED: State.STOPPED}


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """One node: what it does, why, and when it was last heard of."""

    node: str
    state: State = State.UNKNOWN
    reason: str = ""
    warning: str = ""
    """What is about to end its part: a wish that it leaves, a hang."""
    ranks: tuple[int, ...] = ()
    generation: int = 0
    heard_s: float = 0.0
    exporter: str = ""


@dataclass(frozen=True, kw_only=True)
class Copy:
    """The newest copy of the state in one tier."""

    iteration: int
    consumed_samples: int
    saved_s: float


@dataclass(frozen=True, kw_only=True)
class RecoverySeen:
    """One recovery, by the way it took."""

    at_s: float
    generation: int
    cause: str
    path: str
    seconds: float
    lost_steps: int


@dataclass(frozen=True, kw_only=True)
class Status:
    """A run at one moment. Times are Unix times as the nodes told them; ages are reckoned with `now_s`."""

    now_s: float
    state: State
    reason: str
    since_s: float
    job_id: str = ""
    generation: int = 0
    world_size: int = 0
    nodes: tuple[NodeStatus, ...] = ()
    iteration: int = 0
    consumed_samples: int = 0
    goal_samples: int | None = None
    loss: float | None = None
    step_s: float | None = None
    samples_per_s: float | None = None
    eta_s: float | None = None
    """Seconds until the goal at the present pace; None where pace or goal is not known."""
    copies: Mapping[str, Copy]
    recoveries: tuple[RecoverySeen, ...] = ()
    rescales: int = 0
    failed_saves: int = 0
    heard_s: float = 0.0


class StatusFold:
    """Takes records one by one, in the order of their times, and tells the status at any moment."""

    def __init__(self) -> None:
        self._state, self._reason, self._since_s = State.UNKNOWN, "no record of this run yet", 0.0
        self._nodes: dict[str, NodeStatus] = {}
        self._known: dict[str, Any] = {"copies": {}}
        self._generation = 0
        self._members: tuple[str, ...] = ()
        self._recoveries: list[RecoverySeen] = []
        self._rescales = self._failed_saves = 0
        self._pace = Pace()
        self._handlers: dict[type[events.Event], Callable[[Record, Any], None]] = {
            events.AgentStarted: self._agent_started,
            events.NodesAwaited: self._nodes_awaited,
            events.RoundOpened: self._round_opened,
            events.WorldFormed: self._world_formed,
            events.Rescaled: self._rescaled,
            events.NodeLost: self._node_lost,
            events.WorkerStarted: self._worker_here,
            events.WorkerStayed: self._worker_here,
            events.WorkerLost: self._worker_lost,
            events.WorkerHung: self._in_trouble,
            events.LeaveAsked: self._in_trouble,
            events.GroupReady: self._group_ready,
            events.Restored: self._restored,
            events.StepCommitted: self._step_committed,
            events.CheckpointSaved: self._saved,
            events.CheckpointFailed: self._save_failed,
            events.Recovered: self._recovered,
            events.RunFinished: self._run_finished,
            events.JobEnded: self._job_ended,
        }

    def apply(self, record: Record) -> None:
        """Take one record into account; kinds that say nothing of the state only show that its node is heard of."""
        node = self._nodes.get(record.node, NodeStatus(node=record.node))
        self._nodes[record.node] = replace(node, heard_s=record.time_s)
        handler = self._handlers.get(type(record.event))
        if handler is not None:
            handler(record, record.event)

    @property
    def state(self) -> State:
        """What the records say, however old they are."""
        return self._state

    @property
    def patience_s(self) -> float:
        """How long nobody needs to say anything before that is silence."""
        return max(_SILENT_S, _SILENT_STEPS * (self._pace.step_s() or 0.0))

    def status(self, *, now_s: float, goal_samples: int | None = None) -> Status:
        """The status now. `goal_samples`: where the run is to end, if anybody knows."""
        heard_s = max((node.heard_s for node in self._nodes.values()), default=0.0)
        step_s = self._pace.step_s()
        state, reason = self._state, self._reason
        silent_s = now_s - heard_s
        if self._nodes and not state.may_be_silent and silent_s > self.patience_s:
            was = f"{state}: {reason}" if reason else str(state)
            state, reason = State.SILENT, f"nothing was heard for {silent_s:.0f} s; before that: {was}"
        rate = self._pace.samples_per_s(self._known.get("world_size", 0))
        eta_s = None
        if rate and goal_samples is not None and not state.may_be_silent:
            eta_s = max(0, goal_samples - self._known.get("consumed_samples", 0)) / rate
        known: dict[str, Any] = {**self._known, "copies": dict(self._known["copies"])}
        return Status(
            now_s=now_s,
            state=state,
            reason=reason,
            since_s=self._since_s,
            generation=self._generation,
            nodes=tuple(self._nodes[name] for name in sorted(self._nodes)),
            goal_samples=goal_samples,
            step_s=step_s,
            samples_per_s=rate,
            eta_s=eta_s,
            recoveries=tuple(self._recoveries),
            heard_s=heard_s,
            rescales=self._rescales,
            failed_saves=self._failed_saves,
            **known,
        )

    def _be(self, record: Record, state: State, reason: str = "") -> None:
        if (state, reason) != (self._state, self._reason):
            self._state, self._reason, self._since_s = state, reason, record.time_s

    def _node(self, name: str, **changes: Any) -> None:
        self._nodes[name] = replace(self._nodes.get(name, NodeStatus(node=name)), **changes)

    def _agent_started(self, record: Record, event: events.AgentStarted) -> None:
        self._known["job_id"] = event.job_id
        reason = "its agent looks for the others"
        self._node(record.node, state=State.WAITING, reason=reason, warning="", exporter=event.exporter, ranks=())
        if self._state.is_end or self._state is State.UNKNOWN:
            self._be(record, State.WAITING, "agents look for each other")

    def _nodes_awaited(self, record: Record, event: events.NodesAwaited) -> None:
        self._be(record, State.WAITING, f"{event.here} of at least {event.needed} are here: {event.reason}")

    def _round_opened(self, record: Record, event: events.RoundOpened) -> None:
        state = State.PAUSED if event.cause is Cause.PAUSED else State.BETWEEN
        if record.generation >= self._generation:
            self._be(record, state, event.reason)
        self._node(record.node, state=state, reason=event.reason)

    def _world_formed(self, record: Record, event: events.WorldFormed) -> None:
        self._node(record.node, state=State.STARTING, reason="", generation=record.generation, ranks=())
        if record.generation <= self._generation and not event.leader:
            return
        if record.generation > self._generation:
            self._pace.interrupted()
            self._be(record, State.STARTING, event.reason)
        self._generation, self._members = record.generation, event.nodes
        self._known["world_size"] = event.world_size

    def _rescaled(self, record: Record, event: events.Rescaled) -> None:
        self._rescales += 1

    def _node_lost(self, record: Record, event: events.NodeLost) -> None:
        if event.lost in self._nodes and not self._nodes[event.lost].state.is_end:
            self._node(event.lost, state=State.LOST, reason=event.reason, ranks=())

    def _worker_here(self, record: Record, event: events.WorkerStarted | events.WorkerStayed) -> None:
        ranks = tuple(sorted({*self._nodes[record.node].ranks, event.worker_rank}))
        self._node(record.node, state=State.STARTING, ranks=ranks)

    def _worker_lost(self, record: Record, event: events.WorkerLost) -> None:
        self._node(record.node, state=State.BETWEEN, reason=event.reason, warning="")
        if record.generation >= self._generation and not self._state.is_end:
            self._be(record, State.BETWEEN, event.reason)

    def _in_trouble(self, record: Record, event: events.WorkerHung | events.LeaveAsked) -> None:
        """What is going to happen to this node is told with it until it has happened."""
        asked = isinstance(event, events.LeaveAsked)
        self._node(record.node, warning=f"asked to leave: {event.reason}" if asked else f"hangs: {event.reason}")

    def _advance(self, record: Record, state: State) -> None:
        """A worker of the newest generation came a stage further; one that is alone has no agent to tell it."""
        self._node(record.node, state=state, reason="", generation=record.generation)
        if record.generation > self._generation:
            self._generation = record.generation
        if record.generation == self._generation:
            self._be(record, state)

    def _group_ready(self, record: Record, event: events.GroupReady) -> None:
        self._advance(record, State.RESTORING)

    def _restored(self, record: Record, event: events.Restored) -> None:
        self._advance(record, State.FIRST_STEP)
        if record.generation == self._generation:
            self._known |= {"iteration": event.iteration, "consumed_samples": event.consumed_samples}

    def _step_committed(self, record: Record, event: events.StepCommitted) -> None:
        if record.generation < self._generation:
            return
        if self._state not in (State.BETWEEN, State.PAUSED):  # A planned round: the step is finished first.
            self._advance(record, State.TRAINING)
        if record.rank not in self._nodes[record.node].ranks and record.rank is not None:
            self._node(record.node, ranks=(*self._nodes[record.node].ranks, record.rank))
        told = {"iteration": event.iteration, "consumed_samples": event.stop, "world_size": event.world_size}
        self._known |= told | ({} if event.skipped else {"loss": event.loss})
        if record.rank in (0, None):
            self._pace.stepped(event, time_s=record.time_s)

    def _saved(self, record: Record, event: events.CheckpointSaved) -> None:
        if record.rank in (0, None):
            self._known["copies"][event.tier] = Copy(
                iteration=event.iteration, consumed_samples=event.consumed_samples, saved_s=record.time_s
            )

    def _save_failed(self, record: Record, event: events.CheckpointFailed) -> None:
        self._failed_saves += record.rank in (0, None)

    def _recovered(self, record: Record, event: events.Recovered) -> None:
        seen = RecoverySeen(
            at_s=record.time_s,
            generation=record.generation,
            cause=event.cause,
            path=event.path,
            seconds=event.seconds,
            lost_steps=event.lost_steps,
        )
        self._recoveries.append(seen)

    def _run_finished(self, record: Record, event: events.RunFinished) -> None:
        self._known |= {"iteration": event.iteration, "consumed_samples": event.consumed_samples}
        self._node(record.node, state=State.FINISHED)
        self._be(record, State.FINISHED, f"all {event.consumed_samples} samples are used")

    def _job_ended(self, record: Record, event: events.JobEnded) -> None:
        self._node(record.node, state=_ENDS[event.outcome], reason=event.reason, warning="")
        members = [self._nodes[name] for name in self._members if name in self._nodes] or list(self._nodes.values())
        if all(node.state.is_end for node in members):
            self._be(record, _ENDS[event.outcome], event.reason)
