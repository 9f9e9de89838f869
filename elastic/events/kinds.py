"""Kinds: everything that can happen, as frozen values. Metrics, status, report and audit are made from these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from elastic.events.causes import Cause, Direction, Outcome

Measured = float
"""What a model computed: it may be no number, or endless. All other numbers of events are finite."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base: plain data, JSON types only (str, int, float, bool, None, tuples of these)."""

    kind: ClassVar[str] = ""


@dataclass(frozen=True, kw_only=True)
class AgentStarted(Event):
    """An agent is up and looking for its job."""

    kind = "agent_started"
    job_id: str
    agent: str
    endpoint: str
    exporter: str
    version: str
    torch_version: str
    most_nodes: int = 0
    """How many nodes the job may have; 0: not known."""


@dataclass(frozen=True, kw_only=True)
class RoundOpened(Event):
    """The present generation is over; members come together for the next one."""

    kind = "round_opened"
    cause: Cause
    reason: str


@dataclass(frozen=True, kw_only=True)
class WorldFormed(Event):
    """A generation begins. `seconds` from this agent's joining to the agreed world.

    `nodes` in rank order; of a large world the leader alone knows all of its `node_count`, the others some.
    """

    kind = "world_formed"
    world_size: int
    nodes: tuple[str, ...]
    node_count: int
    node_rank: int
    cause: Cause
    reason: str
    seconds: float
    leader: bool
    budget: tuple[tuple[str, int, int], ...] = ()
    """How many failures each reason allows without getting past `budget_step`, as (reason, still left, of how many)."""
    budget_step: int = 0
    most_nodes: int = 0


@dataclass(frozen=True, kw_only=True)
class NodesAwaited(Event):
    """No generation can be agreed until more nodes come: `here` of at least `needed`. Emitted by the leader only."""

    kind = "nodes_awaited"
    here: int
    needed: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Rescaled(Event):
    """The world changed its size or a member of it. Emitted by the leader only."""

    kind = "rescaled"
    direction: Direction
    cause: Cause
    old_world_size: int
    new_world_size: int


@dataclass(frozen=True, kw_only=True)
class NodeLost(Event):
    """The leader evicted a member, or its lease ran out."""

    kind = "node_lost"
    lost: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class WorkerStarted(Event):
    """This node's worker process was started. `path`: how (refork: from the zygote; reexec: a new Python)."""

    kind = "worker_started"
    worker_rank: int
    pid: int
    path: str


@dataclass(frozen=True, kw_only=True)
class WorkerStayed(Event):
    """This node's worker process was not ended: it takes part in the next generation with all it has."""

    kind = "worker_stayed"
    worker_rank: int
    pid: int


@dataclass(frozen=True, kw_only=True)
class WorkerLost(Event):
    """This node's worker ended before its job did."""

    kind = "worker_lost"
    worker_rank: int
    pid: int
    cause: Cause
    reason: str


@dataclass(frozen=True, kw_only=True)
class Recovered(Event):
    """The first step committed after a fault. `seconds` from its detection on this node; leader only."""

    kind = "recovered"
    cause: Cause
    path: str
    seconds: float
    lost_steps: int
    stages: tuple[tuple[str, float], ...] = ()
    """The parts of `seconds` on this node, as (stage, seconds): agree, start, group, restore, first_step."""


@dataclass(frozen=True, kw_only=True)
class WorkerHung(Event):
    """This node's worker did one thing for longer than it ever should: it is ended. `stacks`: the file with all's."""

    kind = "worker_hung"
    pid: int
    doing: str
    seconds: float
    reason: str
    stacks: str


@dataclass(frozen=True, kw_only=True)
class LeaveAsked(Event):
    """Somebody wants this node to leave. `source`: signal, drain, or who said that the machine is about to go."""

    kind = "leave_asked"
    source: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class JobEnded(Event):
    """This agent's job is over."""

    kind = "job_ended"
    outcome: Outcome
    exit_code: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class GroupReady(Event):
    """The process group of this generation stands. `seconds` it took."""

    kind = "group_ready"
    backend: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ReplicasDiffered(Event):
    """Workers that had come equally far held different bits: a fault of a machine or of the job's code. Mended."""

    kind = "replicas_differed"
    ranks: tuple[int, ...]
    reason: str


@dataclass(frozen=True, kw_only=True)
class Straggles(Event):
    """This worker computes slower than the others, or (`slow` False) does so no more. Times are of a micro-batch."""

    kind = "straggles"
    slow: bool
    own_s: float
    others_s: float
    local_rank: int


@dataclass(frozen=True, kw_only=True)
class OrderChosen(Event):
    """Which item each global sample number is, from here on. An account needs nobody's data set with it."""

    kind = "order_chosen"
    length: int
    seed: int
    order: str
    order_version: int
    segments: str = ""
    """The whole order as JSON (`DataOrder.to_plain`); "" in older files, where the fields above say it all."""


@dataclass(frozen=True, kw_only=True)
class StepCommitted(Event):
    """One optimizer step is done on this rank.

    `start`..`stop` is the span of global sample numbers of the whole step; `ranges` are the ones that this rank
    really fetched and used, as (start, stop) pairs; `step_digest` and `step_samples` are sums over all ranks.
    """

    kind = "step_committed"
    iteration: int
    start: int
    stop: int
    ranges: tuple[tuple[int, int], ...]
    step_samples: int
    step_digest: int
    run_digest: int
    loss: Measured
    world_size: int
    seconds: float
    skipped: str = ""
    """Why these samples changed nothing, as a policy wants it; "" for an ordinary step."""
    own_s: float | None = None
    """`seconds` without those in which this rank waited for others: who has many holds all up. None: not known."""
    local_rank: int = 0
    data_s: float | None = None
    """How long this rank waited for data since the step before. None: not known."""
    save_s: float | None = None
    """The same for saves and copies."""


@dataclass(frozen=True, kw_only=True)
class Evaluated(Event):
    """A model was measured on a whole data set; `values` are (name, mean) pairs. Told by rank 0."""

    kind = "evaluated"
    iteration: int
    consumed_samples: int
    values: tuple[tuple[str, Measured], ...]


@dataclass(frozen=True, kw_only=True)
class CheckpointSaved(Event):
    """An iteration was committed, or (tier "memory") copied; training waited `stall_s`. `skipped`: since the last."""

    kind = "checkpoint_saved"
    iteration: int
    consumed_samples: int
    bytes: int
    seconds: float
    interval_s: float | None
    tier: str = "disk"
    stall_s: float = 0.0
    skipped: int = 0


@dataclass(frozen=True, kw_only=True)
class CheckpointFailed(Event):
    """A save did not become durable. Training goes on; the last good iteration stays."""

    kind = "checkpoint_failed"
    iteration: int
    reason: str
    tier: str = "disk"


@dataclass(frozen=True, kw_only=True)
class StorageRetried(Event):
    """A request to an object store failed, or its answer was cut off, and it is made again."""

    kind = "storage_retried"
    reason: str


@dataclass(frozen=True, kw_only=True)
class CheckpointRejected(Event):
    """An iteration on disk was passed over while restoring, with the file and what is wrong with it."""

    kind = "checkpoint_rejected"
    iteration: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Fencing(Event):
    """Something of an ended generation was refused. `what`: checkpoint, worker or agent."""

    kind = "fenced"
    what: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Notice(Event):
    """Something a person should read: a step formula that is not exact, an idle rank, a changed setting."""

    kind = "notice"
    text: str


@dataclass(frozen=True, kw_only=True)
class RunFinished(Event):
    """The run reached its last step."""

    kind = "run_finished"
    iteration: int
    consumed_samples: int


@dataclass(frozen=True, kw_only=True)
class Unknown(Event):
    """A record of another version: one of a kind that this one has not, or without what this one needs of it."""

    kind = "unknown"
    name: str
    """The kind that it says to be."""
    fields: str
    """What it tells, as JSON."""
    reason: str


class Emit(Protocol):
    """Where code that has something to tell is given to tell it."""

    def __call__(self, event: Event) -> None: ...
