"""The settings of a run as typed values: every one with its default, its meaning and its limits.

Each field carries a `Rule` (meaning, unit, limits), read by the loader, by `elastic config show` and by the docs.
Names and defaults of the checkpoint section are those of MindSpore Transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elastic.config.agents import LaunchSettings, RendezvousSettings
from elastic.config.choices import (
    Notices,
    Numerics,
    OnNan,
    PathScope,
    SaveInterval,
    SaveMode,
    SaveOverlap,
    StrategyKind,
)
from elastic.config.rules import about
from elastic.plan.batch_mode import BatchMode, RateRule
from elastic.plan.data_order import OnChange
from elastic.plan.order import OrderKind

Scalar = str | int | float | bool


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How long to train and with how many samples at a time."""

    global_batch_size: int = field(
        default=24, metadata=about("samples of one optimizer step, over all workers", unit="samples", least=1)
    )
    micro_batch_size: int = field(
        default=4, metadata=about("samples of one forward and backward pass of a worker", unit="samples", least=1)
    )
    steps: int = field(
        default=1000,
        metadata=about(
            "length of the run: it ends when steps * global_batch_size samples are used", unit="steps", least=1
        ),
    )
    seed: int = field(default=0, metadata=about("seed of the first weights, the order and all randomness", least=0))
    threads_per_worker: int = field(
        default=1, metadata=about("CPU threads that torch uses in a worker; 0 leaves it to torch", least=0)
    )
    batch: BatchMode = field(
        default=BatchMode.FIXED_GLOBAL, metadata=about("what stays the same when the world size changes")
    )
    rank_batch_size: int = field(
        default=0,
        metadata=about(
            "batch: per_rank: samples of one worker in a step, a multiple of micro_batch_size; 0: global_batch_size",
            unit="samples",
            least=0,
        ),
    )
    rate_rule: RateRule = field(
        default=RateRule.NONE,
        metadata=about("batch: per_rank: how the learning rate follows a batch that is not global_batch_size"),
    )
    on_nan: OnNan = field(
        default=OnNan.STOP,
        metadata=about(
            "a step's loss is not finite: stop, skip the step, or roll_back to the last save and skip from there on"
        ),
    )
    strategy: StrategyKind = field(
        default=StrategyKind.REPLICATE,
        metadata=about("replicate: every worker holds the whole model; fsdp2: each holds a part of every parameter"),
    )
    numerics: Numerics = field(
        default=Numerics.PLAIN,
        metadata=about("exact: the same bits at any world size, on machines that compute alike; plain: up to rounding"),
    )


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """What to train on."""

    path: str = field(
        default="auto",
        metadata=about("text file, directory or .jsonl; auto: Python sources of this installation", filled=True),
    )
    num_workers: int = field(default=0, metadata=about("processes that load data for each worker", least=0))
    order: OrderKind = field(default=OrderKind.SHUFFLE, metadata=about("order of the samples in an epoch"))
    block_items: int = field(
        default=1024,
        metadata=about("order: block_shuffle: neighbouring items that stay together", unit="samples", least=1),
    )
    on_change: OnChange = field(
        default=OnChange.REFUSE, metadata=about("what to do when the data is not what the saved run used")
    )
    probe_items: int = field(
        default=4,
        metadata=about("items looked at before the start, to notice changed data; 0: none", unit="samples", least=0),
    )


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Size of the default job's GPT (byte vocabulary)."""

    layers: int = field(default=4, metadata=about("transformer blocks", least=1))
    width: int = field(default=256, metadata=about("size of the residual stream; a multiple of heads", least=1))
    heads: int = field(default=8, metadata=about("attention heads", least=1))
    context: int = field(default=64, metadata=about("length of one sample", unit="bytes", least=1))
    dropout: float = field(default=0.0, metadata=about("share of activations dropped in training", least=0, below=1))


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """AdamW, warm-up and cosine, as functions of the samples used."""

    learning_rate: float = field(default=1e-3, metadata=about("highest learning rate", above=0))
    weight_decay: float = field(default=0.1, metadata=about("decoupled weight decay of matrices", least=0))
    warmup_samples: int = field(
        default=1200, metadata=about("samples until the learning rate is at its highest", unit="samples", least=0)
    )
    max_grad_norm: float = field(
        default=1.0, metadata=about("gradients longer than this are shortened to it; 0: never", least=0)
    )


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """What is saved, where and when; where the first start of a run loads from."""

    enable_save: bool = field(default=True, metadata=about("whether to save checkpoints"))
    save_path: str = field(
        default="output/checkpoint", metadata=about("root directory of the run's checkpoints and events")
    )
    save_path_scope: PathScope = field(
        default=PathScope.AUTO,
        metadata=about("whether all nodes share save_path, or each has a directory of its own; auto: found out"),
    )
    save_interleaved_steps: int = field(
        default=1000, metadata=about("steps from one save to the next", unit="steps", least=1)
    )
    save_mode: SaveMode = field(
        default=SaveMode.ASYNC,
        metadata=about("async: training waits only for a copy in memory, which is written beside it"),
    )
    save_overlap: SaveOverlap = field(
        default=SaveOverlap.WAIT, metadata=about("what a save does while the one before is still being written")
    )
    memory_every_steps: int = field(
        default=10,
        metadata=about(
            "steps from one copy in the node's memory to the next, for restarts on it; 0: none", unit="steps", least=0
        ),
    )
    memory_peers: int = field(
        default=1,
        metadata=about(
            "with fsdp2: to how many other nodes' memory each part is copied, too; 0: a lost node means the disk",
            least=0,
            most=1,
        ),
    )
    memory_required: bool = field(
        default=False, metadata=about("without room for the copies in memory: end instead of going on without them")
    )
    save_interval: SaveInterval = field(
        default=SaveInterval.FIXED,
        metadata=about("auto: save_interleaved_steps is where the run begins, then it follows costs and failures"),
    )
    no_save_optim: bool = field(default=False, metadata=about("save weights only: no later start can go on in full"))
    save_max: int = field(default=5, metadata=about("iterations kept on disk", least=1))
    keep_every_steps: int = field(
        default=0,
        metadata=about("keep the multiples of this, besides the save_max newest; 0: none", unit="steps", least=0),
    )
    load_path: str = field(
        default="", metadata=about("root directory that the first start of a run loads from; empty: none")
    )
    checkpoint_path: str = field(
        default="",
        metadata=about("directory of the one iteration that the first start loads, instead of load_path; empty: none"),
    )
    load_unhealthy: bool = field(
        default=False, metadata=about("load also what was saved with an abnormal loss or gradient norm")
    )
    no_load_optim: bool = field(
        default=False, metadata=about("the first start loads weights only and begins at sample 0")
    )
    load_balanced: bool = field(
        default=False, metadata=about("each byte is read by one worker and sent to the others: less is read in all")
    )


@dataclass(frozen=True, kw_only=True)
class MetricsSettings:
    """The Prometheus exporter of each agent."""

    enabled: bool = field(default=True, metadata=about("whether agents serve /metrics"))
    host: str = field(
        default="127.0.0.1",
        metadata=about("address to listen on; 0.0.0.0: for other machines too", filled=True),
    )
    port: int = field(
        default=9400, metadata=about("port; the next free one of the following 100 if taken", least=0, most=65535)
    )
    tls_cert: str = field(default="", metadata=about("certificate file (PEM) to serve HTTPS with; empty: plain HTTP"))
    tls_key: str = field(default="", metadata=about("its key; empty: in the same file"))
    client_ca: str = field(
        default="", metadata=about("who reads the metrics must show a certificate of this authority; empty: need not")
    )
    users_file: str = field(
        default="", metadata=about("lines of user:password, one of which readers must give; empty: need not")
    )


@dataclass(frozen=True, kw_only=True)
class TrackingSettings:
    """Where the curves of the run go, beside its events."""

    to: str = field(
        default="none", metadata=about("none, tensorboard, wandb, mlflow, or module:name of your own", filled=True)
    )
    every_steps: int = field(
        default=10, metadata=about("steps from one point of a curve to the next", unit="steps", least=1)
    )
    project: str = field(
        default="elastic", metadata=about("project of Weights & Biases, experiment of MLflow", filled=True)
    )
    directory: str = field(
        default="", metadata=about("local files of the tool; empty: `tracking` beside the run's events")
    )


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """What is trained."""

    target: str = field(default="jobs.pretrain_lm:job", metadata=about("the job, as module:name", filled=True))
    options: Mapping[str, Scalar] = field(
        default_factory=dict, metadata=about("free values for your own job: job.options.NAME")
    )
    no_progress_limit: int = field(
        default=3, metadata=about("give up (exit code 77) when the same step failed this many times", least=1)
    )


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """When a node leaves, and when its workers hang."""

    notices: Notices = field(
        default=Notices.OFF,
        metadata=about("ask this cloud's metadata address whether the machine will be taken away; then save and leave"),
    )
    notices_address: str = field(
        default="", metadata=about("metadata address, as http://host:port; empty: the cloud's own")
    )
    notices_pause_s: float = field(
        default=2.0, metadata=about("from one question to the next", unit="s", above=0, most=60)
    )
    hang_least_s: float = field(
        default=60.0,
        metadata=about(
            "no part of a step is called hung before; after 5 times the longest seen it is", unit="s", above=0
        ),
    )
    hang_unknown_s: float = field(
        default=1800.0,
        metadata=about(
            "the same where nothing was seen yet, as for the first step; 0: hangs are not looked for", unit="s", least=0
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that can be set for a run."""

    training: TrainingSettings = field(default_factory=TrainingSettings)
    data: DataSettings = field(default_factory=DataSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    rendezvous: RendezvousSettings = field(default_factory=RendezvousSettings)
    launch: LaunchSettings = field(default_factory=LaunchSettings)
    metrics: MetricsSettings = field(default_factory=MetricsSettings)
    tracking: TrackingSettings = field(default_factory=TrackingSettings)
    node: NodeSettings = field(default_factory=NodeSettings)
    job: JobSettings = field(default_factory=JobSettings)
