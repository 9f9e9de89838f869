"""Every metric that an agent exports, as a table: name, type, labels, and how to combine the agents' values.

Label values are closed sets, so the number of series is fixed. Counters and histograms exist from the start with
zero: Prometheus sees no increase in a series whose first value is 1. Gauges whose zero would be a lie (a loss, a
timestamp) appear with their first value.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

from elastic.events import Cause, Direction

OTHER = "other"
"""Stands for every label value that this version does not know."""

TIERS = ("memory", "peer", "disk", OTHER)
PATHS = ("rejoin", "refork", "reexec", OTHER)
FENCED = ("checkpoint", "worker", "agent", OTHER)
CAUSES = tuple(str(cause) for cause in Cause)
FAILURES = tuple(str(c) for c in (Cause.NODE_LOST, Cause.WORKER_EXIT, Cause.WORKER_SIGNAL, Cause.GROUP_FAILED))
LOCAL_RANKS = (*map(str, range(16)), OTHER)
DIRECTIONS = tuple(str(direction) for direction in Direction)

STEP_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
RECOVERY_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


class Kind(enum.StrEnum):
    """Prometheus' types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Over(enum.StrEnum):
    """How to make one value for the job out of its agents' values."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"
    EACH = "each"
    """It says something of one agent; there is no value for the job."""


@dataclass(frozen=True, kw_only=True)
class Definition:
    """One metric. `labels` are names with all the values they can have; None: any one value, set once."""

    name: str
    kind: Kind
    over: Over
    help: str
    labels: tuple[tuple[str, tuple[str, ...] | None], ...] = ()
    buckets: tuple[float, ...] = field(default=())
    from_start: bool = True
    """Whether every series exists before anything happened."""

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of its labels, in order."""
        return tuple(name for name, _ in self.labels)

    def label_sets(self) -> Iterator[tuple[str, ...]]:
        """Every combination of label values that it starts with."""
        return product(*(values or () for _, values in self.labels))

    def bounded(self, labels: tuple[str, ...]) -> tuple[str, ...]:
        """The labels, with OTHER in the place of a value outside its set."""
        if len(labels) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.label_names}, got the values {labels}")
        pairs = zip(self.labels, labels, strict=True)
        return tuple(value if known is None or value in known else OTHER for (_, known), value in pairs)


def _gauge(
    name: str, over: Over, text: str, *, from_start: bool = True, **labels: tuple[str, ...] | None
) -> Definition:
    return Definition(
        name=name, kind=Kind.GAUGE, over=over, help=text, labels=tuple(labels.items()), from_start=from_start
    )


def _counter(name: str, text: str, **labels: tuple[str, ...]) -> Definition:
    return Definition(name=name, kind=Kind.COUNTER, over=Over.SUM, help=text, labels=tuple(labels.items()))


def _histogram(name: str, text: str, buckets: tuple[float, ...], **labels: tuple[str, ...]) -> Definition:
    return Definition(
        name=name, kind=Kind.HISTOGRAM, over=Over.SUM, help=text, labels=tuple(labels.items()), buckets=buckets
    )


BUILD_INFO = _gauge(
    "elastic_build_info", Over.EACH, "1; versions of the package and of torch.",
    from_start=False, version=None, torch_version=None,
)  # fmt: skip
JOB_INFO = _gauge("elastic_job_info", Over.EACH, "1; the job and this node.", from_start=False, job_id=None, node=None)
JOB_ACTIVE = _gauge("elastic_job_active", Over.MAX, "1 while this agent's job should be training, else 0.")
GENERATION = _gauge("elastic_generation", Over.MAX, "Number of the agreed membership, the fencing token.")
WORLD_SIZE = _gauge("elastic_world_size", Over.MAX, "Workers of the present generation.")
NODES = _gauge("elastic_nodes", Over.MAX, "Nodes of the present generation.")
NODES_AWAITED = _gauge(
    "elastic_nodes_awaited", Over.MAX,
    "Nodes that must still come before a generation can be agreed; 0 where none is missing. Told by the leader.",
)  # fmt: skip
STEP = _gauge("elastic_step", Over.MAX, "Last optimizer step that this node's workers committed.")
CONSUMED_SAMPLES = _gauge(
    "elastic_consumed_samples", Over.MAX, "Position of the run: samples used in the lineage of the parameters."
)
SAMPLES = _counter(
    "elastic_samples_total",
    "Samples of committed steps, recomputed ones included. Counted on rank 0's node.",
)
SKIPPED_SAMPLES = _counter(
    "elastic_skipped_samples_total",
    "Samples passed over because their loss was no number, as training.on_nan wants it. Counted on rank 0's node.",
)
STEPS_COMMITTED = _counter(
    "elastic_steps_committed_total", "Committed optimizer steps, recomputed ones included. Counted on rank 0's node."
)
LAST_STEP_TIME = _gauge(
    "elastic_last_step_timestamp_seconds", Over.MAX, "When the last step was committed, Unix time.", from_start=False
)
STEP_DURATION = _histogram(
    "elastic_step_duration_seconds", "Time of one optimizer step. Observed on rank 0's node.", STEP_BUCKETS_S
)
RANK_STEP_DURATION = _gauge(
    "elastic_rank_step_duration_seconds", Over.EACH,
    "Time of a worker's last step without what it waited for others: who has much more than the rest holds them up.",
    from_start=False, local_rank=LOCAL_RANKS,
)  # fmt: skip
LOSS = _gauge(
    "elastic_loss", Over.MAX, "Mean loss of the last step. Only rank 0's node has it.", from_start=False
)  # fmt: skip
DATA_DIGEST = _gauge(
    "elastic_data_digest", Over.EACH, "32-bit digest of all samples used so far, the same at any world size.",
    from_start=False,
)  # fmt: skip
SAMPLE_FAULTS = _counter(
    "elastic_sample_faults_total",
    "Steps of this node's workers that did not go on from the sample before, or used others when done again.",
)
RESCALES = _counter(
    "elastic_rescales_total",
    "Changes of the membership of a running job. Counted by the leader.",
    direction=DIRECTIONS,
    cause=CAUSES,
)
RESTARTS = _counter(
    "elastic_restarts_total", "Worker processes started again on this node, by what ended the last generation.",
    reason=CAUSES,
)  # fmt: skip
WORKERS_STAYED = _counter(
    "elastic_workers_stayed_total", "Workers of this node that kept process and state when the membership changed."
)
REPLICAS_DIFFERED = _counter(
    "elastic_replicas_differed_total",
    "Workers that had come equally far with other bits than the rest. Mended, and counted on rank 0's node.",
)
FAILURES_TOTAL = _counter(
    "elastic_failures_total",
    "Faults: workers that failed on this node, and nodes lost (counted by the leader). A worker that only lost its"
    " peer is none.",
    reason=FAILURES,
)
RECOVERY_DURATION = _histogram(
    "elastic_recovery_duration_seconds",
    "From the detection of a fault to the next committed step, by the way taken. Observed by the leader.",
    RECOVERY_BUCKETS_S,
    path=PATHS,
)
LAST_RECOVERY = _gauge(
    "elastic_last_recovery_seconds", Over.MAX, "Time of the last recovery that this agent led.", from_start=False
)
LOST_STEPS = _counter("elastic_lost_steps_total", "Steps that had to be computed again. Counted by the leader.")
CHECKPOINT_TIME = _gauge(
    "elastic_checkpoint_last_success_timestamp_seconds", Over.MAX, "When the last save was committed, Unix time.",
    from_start=False, tier=TIERS,
)  # fmt: skip
CHECKPOINT_AGE = _gauge(
    "elastic_checkpoint_age_seconds", Over.MIN, "Time since the last committed save, reckoned at the scrape.",
    from_start=False, tier=TIERS,
)  # fmt: skip
CHECKPOINT_STEP = _gauge(
    "elastic_checkpoint_last_step", Over.MAX, "Iteration of the last committed save.", from_start=False, tier=TIERS
)
CHECKPOINT_INTERVAL = _gauge(
    "elastic_checkpoint_interval_seconds", Over.MAX, "Time between the last two saves.", from_start=False, tier=TIERS
)
CHECKPOINT_DURATION = _histogram(
    "elastic_checkpoint_duration_seconds", "Time of one committed save.", RECOVERY_BUCKETS_S, tier=TIERS
)
CHECKPOINT_BYTES = _counter("elastic_checkpoint_bytes_total", "Bytes of committed saves.", tier=TIERS)
CHECKPOINT_STALL = _counter(
    "elastic_checkpoint_stall_seconds_total", "Time that training waited for saves and for copies in memory.",
    tier=TIERS,
)  # fmt: skip
CHECKPOINT_SKIPPED = _counter(
    "elastic_checkpoint_skipped_total", "Saves and copies left out, since the one before was still being written.",
    tier=TIERS,
)  # fmt: skip
RESTORES = _counter(
    "elastic_restores_total",
    "Restores by where the state came from; process: rank 0's worker kept it. Counted on rank 0's node.",
    tier=("process", *TIERS),
)
CHECKPOINT_FAILURES = _counter("elastic_checkpoint_failures_total", "Saves that did not become durable.")
CHECKPOINT_FALLBACKS = _counter(
    "elastic_checkpoint_fallbacks_total", "Iterations passed over while restoring, since they were damaged."
)
STORAGE_RETRIES = _counter(
    "elastic_storage_retries_total", "Requests to an object store that failed and were made again, by any worker."
)
FENCED_OPERATIONS = _counter(
    "elastic_fenced_operations_total", "Operations of an ended generation that were refused.", kind=FENCED
)
RENDEZVOUS_DURATION = _histogram(
    "elastic_rendezvous_duration_seconds", "From this agent's joining to the agreed world.", RECOVERY_BUCKETS_S
)

DEFINITIONS: tuple[Definition, ...] = (
    BUILD_INFO,
    JOB_INFO,
    JOB_ACTIVE,
    GENERATION,
    WORLD_SIZE,
    NODES,
    NODES_AWAITED,
    STEP,
    CONSUMED_SAMPLES,
    SAMPLES,
    SKIPPED_SAMPLES,
    STEPS_COMMITTED,
    LAST_STEP_TIME,
    STEP_DURATION,
    RANK_STEP_DURATION,
    LOSS,
    DATA_DIGEST,
    RESCALES,
    RESTARTS,
    WORKERS_STAYED,
    REPLICAS_DIFFERED,
    SAMPLE_FAULTS,
    FAILURES_TOTAL,
    RECOVERY_DURATION,
    LAST_RECOVERY,
    LOST_STEPS,
    CHECKPOINT_TIME,
    CHECKPOINT_AGE,
    CHECKPOINT_STEP,
    CHECKPOINT_INTERVAL,
    CHECKPOINT_DURATION,
    CHECKPOINT_BYTES,
    CHECKPOINT_STALL,
    CHECKPOINT_SKIPPED,
    RESTORES,
    CHECKPOINT_FAILURES,
    CHECKPOINT_FALLBACKS,
    STORAGE_RETRIES,
    FENCED_OPERATIONS,
    RENDEZVOUS_DURATION,
)
"""All of them, in the order of the documentation."""
