"""Every metric that an agent exports, as a table: name, type, labels, who exports it, how agents' values combine.

Label values are closed sets, so the number of series is fixed. Counters and histograms exist from the start with
zero: Prometheus sees no increase in a series whose first value is 1. Gauges whose zero would be a lie (a loss, a
timestamp) appear with their first value.
"""

from __future__ import annotations

from elastic.events import Cause, Direction
from elastic.metrics.definition import OTHER, Definition, Over, counter, gauge, histogram

STATES = (
    *("productive", "recompute", "data_wait", "checkpoint_stall", "hang"),
    *("waiting", "paused", "rendezvous", "startup", "restore", "first_step", "idle", "down"),
)
"""What a job's time is spent on: the first row is training, told apart by what comes of it."""
STAGES = ("agree", "start", "group", "restore", "first_step")
LEAVE_SOURCES = ("signal", "drain", "aws", "gcp", OTHER)
BUDGETS = ("worker", "hang", "group", "peer", OTHER)
STORE_OPS = ("get", "range", "put", "transact", "grant", "keep_alive", "revoke", OTHER)
TIERS = ("memory", "peer", "disk", OTHER)
PATHS = ("rejoin", "refork", "reexec", OTHER)
FENCED = ("checkpoint", "worker", "agent", OTHER)
CAUSES = tuple(str(cause) for cause in Cause)
FAILURES = tuple(
    str(cause)
    for cause in (Cause.NODE_LOST, Cause.WORKER_EXIT, Cause.WORKER_SIGNAL, Cause.WORKER_HUNG, Cause.GROUP_FAILED)
)
LOCAL_RANKS = (*map(str, range(16)), OTHER)
DIRECTIONS = tuple(str(direction) for direction in Direction)

STEP_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
STORE_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
RECOVERY_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


BUILD_INFO = gauge(
    "elastic_build_info", Over.EACH, "1; versions of the package and of torch.",
    from_start=False, version=None, torch_version=None,
)  # fmt: skip
JOB_INFO = gauge("elastic_job_info", Over.EACH, "1; the job and this node.", from_start=False, job_id=None, node=None)
JOB_ACTIVE = gauge(
    "elastic_job_active", Over.MAX, "1 while this agent's job should be training, else 0 (over, or paused)."
)
GENERATION = gauge("elastic_generation", Over.MAX, "Number of the agreed membership, the fencing token.")
WORLD_SIZE = gauge("elastic_world_size", Over.MAX, "Workers of the present generation.")
NODES = gauge("elastic_nodes", Over.MAX, "Nodes of the present generation.")
NODES_AWAITED = gauge(
    "elastic_nodes_awaited", Over.MAX,
    "Nodes that must still come before a generation can be agreed; 0 where none is missing.", job=True,
)  # fmt: skip
TARGET_NODES = gauge(
    "elastic_target_nodes", Over.MAX, "How many nodes the job may have at most, by torchrun or by a person.",
    job=True, from_start=False,
)  # fmt: skip
TIME = counter(
    "elastic_time_seconds_total",
    "Time since the run began, by what it was spent on; all states together are all the time there was. Goodput is"
    " productive over all.", job=True, state=STATES,
)  # fmt: skip
STEP = gauge("elastic_step", Over.MAX, "Last optimizer step that this node's workers committed.")
CONSUMED_SAMPLES = gauge(
    "elastic_consumed_samples", Over.MAX, "Position of the run: samples used in the lineage of the parameters."
)
SAMPLES = counter(
    "elastic_samples_total",
    "Samples of committed steps, recomputed ones included.", job=True,
)  # fmt: skip
SKIPPED_SAMPLES = counter(
    "elastic_skipped_samples_total",
    "Samples passed over because their loss was no number, as training.on_nan wants it.", job=True,
)  # fmt: skip
STEPS_COMMITTED = counter(
    "elastic_steps_committed_total", "Committed optimizer steps, recomputed ones included.", job=True,
)  # fmt: skip
LAST_STEP_TIME = gauge(
    "elastic_last_step_timestamp_seconds", Over.MAX, "When the last step was committed, Unix time.", from_start=False
)
STEP_DURATION = histogram(
    "elastic_step_duration_seconds", "Time of one optimizer step.", STEP_BUCKETS_S, job=True,
)  # fmt: skip
RANK_STEP_DURATION = gauge(
    "elastic_rank_step_duration_seconds", Over.EACH,
    "Time of a worker's last step without what it waited for others: who has much more than the rest holds them up.",
    from_start=False, local_rank=LOCAL_RANKS,
)  # fmt: skip
STRAGGLES = gauge(
    "elastic_worker_straggles", Over.SUM, "1 while a worker computes slower than the others for many steps in a row.",
    from_start=False, local_rank=LOCAL_RANKS,
)  # fmt: skip
LOSS = gauge(
    "elastic_loss", Over.MAX, "Mean loss of the last step.", from_start=False, job=True,
)  # fmt: skip
DATA_DIGEST = gauge(
    "elastic_data_digest", Over.EACH, "32-bit digest of all samples used so far, the same at any world size.",
    from_start=False,
)  # fmt: skip
RESCALES = counter(
    "elastic_rescales_total",
    "Changes of the membership of a running job.",
    direction=DIRECTIONS,
    cause=CAUSES, job=True,
)  # fmt: skip
REPLAYED_SAMPLES = counter(
    "elastic_samples_replayed_total",
    "Samples of a step that were used before in the lineage of the parameters: more than 0 is a defect.", job=True,
)  # fmt: skip
MISSED_SAMPLES = counter(
    "elastic_samples_missed_total",
    "Samples that a step began behind or left out, though no step had used them: more than 0 is a defect.", job=True,
)  # fmt: skip
CHANGED_SAMPLES = counter(
    "elastic_samples_changed_total",
    "Samples of a step that was done again, with others than when it was done first: more than 0 is a defect.",
    job=True,
)  # fmt: skip
RESTARTS = counter(
    "elastic_restarts_total",
    "Worker processes started again on this node, by what ended the last generation and how they were started.",
    reason=CAUSES, path=("refork", "reexec", OTHER),
)  # fmt: skip
BUDGET = gauge(
    "elastic_restart_budget_remaining", Over.MIN,
    "How many more failures are survived without getting past the step that failed: a worker's own, groups that do not"
    " form, lost peers though all are back.", from_start=False, job=True, reason=BUDGETS,
)  # fmt: skip
HANGS = counter("elastic_worker_hangs_total", "Workers of this node that were ended since they hung.")
LEAVES_ASKED = counter(
    "elastic_leaves_asked_total", "Requests that this node leave, by who made them.", source=LEAVE_SOURCES
)
WORKERS_STAYED = counter(
    "elastic_workers_stayed_total", "Workers of this node that kept process and state when the membership changed."
)
REPLICAS_DIFFERED = counter(
    "elastic_replicas_differed_total",
    "Workers that had come equally far with other bits than the rest. Mended, and counted on rank 0's node.",
)
FAILURES_TOTAL = counter(
    "elastic_failures_total",
    "Faults: workers that failed on this node, and nodes lost (counted by the leader). A worker that only lost its"
    " peer is none.",
    reason=FAILURES,
)
RECOVERY_DURATION = histogram(
    "elastic_recovery_duration_seconds",
    "From the detection of a fault to the next committed step, by the way taken.",
    RECOVERY_BUCKETS_S,
    path=PATHS, job=True,
)  # fmt: skip
RECOVERY_STAGE = histogram(
    "elastic_recovery_stage_duration_seconds",
    "The parts of each recovery on the leader's node: until the next world is agreed, its workers are started, their"
    " group stands, they have the state, the first step is done.", RECOVERY_BUCKETS_S, job=True, stage=STAGES,
)  # fmt: skip
LAST_RECOVERY = gauge(
    "elastic_last_recovery_seconds", Over.MAX, "Time of the last recovery.", from_start=False, job=True,
)  # fmt: skip
LOST_STEPS = counter("elastic_lost_steps_total", "Steps that had to be computed again.", job=True)
CHECKPOINT_TIME = gauge(
    "elastic_checkpoint_last_success_timestamp_seconds", Over.MAX, "When the last save was committed, Unix time.",
    from_start=False, tier=TIERS,
)  # fmt: skip
CHECKPOINT_AGE = gauge(
    "elastic_checkpoint_age_seconds", Over.MIN, "Time since the last committed save, reckoned at the scrape.",
    from_start=False, tier=TIERS,
)  # fmt: skip
CHECKPOINT_STEP = gauge(
    "elastic_checkpoint_last_step", Over.MAX, "Iteration of the last committed save.", from_start=False, tier=TIERS
)
CHECKPOINT_INTERVAL = gauge(
    "elastic_checkpoint_interval_seconds", Over.MAX, "Time between the last two saves.", from_start=False, tier=TIERS
)
CHECKPOINT_DURATION = histogram(
    "elastic_checkpoint_duration_seconds", "Time of one committed save.", RECOVERY_BUCKETS_S, tier=TIERS
)
CHECKPOINT_BYTES = counter("elastic_checkpoint_bytes_total", "Bytes of committed saves.", tier=TIERS)
CHECKPOINT_STALL = counter(
    "elastic_checkpoint_stall_seconds_total", "Time that training waited for saves and for copies in memory.",
    tier=TIERS,
)  # fmt: skip
CHECKPOINT_SKIPPED = counter(
    "elastic_checkpoint_skipped_total", "Saves and copies left out, since the one before was still being written.",
    tier=TIERS,
)  # fmt: skip
RESTORES = counter(
    "elastic_restores_total",
    "Restores by where the state came from; process: rank 0's worker kept it. Counted on rank 0's node.",
    tier=("process", *TIERS),
)
RESTORE_BYTES = counter(
    "elastic_restore_bytes_total",
    "Bytes of state that came to this node's workers for their restores, by where from; peer: over the network.",
    tier=TIERS,
)
RESTORE_TRANSFER = counter(
    "elastic_restore_transfer_seconds_total",
    "Time in which they came, without agreeing and waiting: bytes over seconds is the rate of one worker.", tier=TIERS,
)  # fmt: skip
CHECKPOINT_FAILURES = counter(
    "elastic_checkpoint_failures_total", "Saves and copies that did not come about.", tier=TIERS
)
CHECKPOINT_FALLBACKS = counter(
    "elastic_checkpoint_fallbacks_total", "Iterations passed over while restoring, since they were damaged."
)
STORAGE_RETRIES = counter(
    "elastic_storage_retries_total", "Requests to an object store that failed and were made again, by any worker."
)
FENCED_OPERATIONS = counter(
    "elastic_fenced_operations_total", "Operations of an ended generation that were refused.", kind=FENCED
)
RENDEZVOUS_DURATION = histogram(
    "elastic_rendezvous_duration_seconds", "From this agent's joining to the agreed world.", RECOVERY_BUCKETS_S
)
STORE_DURATION = histogram(
    "elastic_store_request_duration_seconds", "Time of this agent's requests to etcd.", STORE_BUCKETS_S, op=STORE_OPS
)
STORE_ERRORS = counter(
    "elastic_store_errors_total", "Requests of this agent that etcd did not answer in time, or refused.", op=STORE_OPS
)
LEASE_LEFT = gauge(
    "elastic_lease_left_seconds", Over.MIN,
    "For how long this agent's lease holds for certain; 0: etcd does not confirm it, and nothing is committed.",
    from_start=False,
)  # fmt: skip

DEFINITIONS: tuple[Definition, ...] = (
    BUILD_INFO,
    JOB_INFO,
    JOB_ACTIVE,
    GENERATION,
    WORLD_SIZE,
    NODES,
    NODES_AWAITED,
    TARGET_NODES,
    TIME,
    STEP,
    CONSUMED_SAMPLES,
    SAMPLES,
    SKIPPED_SAMPLES,
    REPLAYED_SAMPLES,
    MISSED_SAMPLES,
    CHANGED_SAMPLES,
    STEPS_COMMITTED,
    LAST_STEP_TIME,
    STEP_DURATION,
    RANK_STEP_DURATION,
    STRAGGLES,
    LOSS,
    DATA_DIGEST,
    RESCALES,
    RESTARTS,
    BUDGET,
    HANGS,
    LEAVES_ASKED,
    WORKERS_STAYED,
    REPLICAS_DIFFERED,
    FAILURES_TOTAL,
    RECOVERY_DURATION,
    RECOVERY_STAGE,
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
    RESTORE_BYTES,
    RESTORE_TRANSFER,
    CHECKPOINT_FAILURES,
    CHECKPOINT_FALLBACKS,
    STORAGE_RETRIES,
    FENCED_OPERATIONS,
    RENDEZVOUS_DURATION,
    STORE_DURATION,
    STORE_ERRORS,
    LEASE_LEFT,
)
"""All of them, in the order of the documentation."""

JOB_DEFINITIONS = tuple(each for each in DEFINITIONS if each.job)
NODE_DEFINITIONS = tuple(each for each in DEFINITIONS if not each.job)
