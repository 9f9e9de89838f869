"""The demo: three nodes train a language model, one is killed, another joins, and every sample is accounted for."""

from __future__ import annotations

import tempfile
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from elastic.clock import SYSTEM_CLOCK, Clock
from elastic.data.audit import Account
from elastic.errors import ElasticError
from elastic.events import (
    AgentStarted,
    CheckpointSaved,
    JobEnded,
    NodeLost,
    Record,
    Recovered,
    Rescaled,
    Restored,
    RoundOpened,
    RunFinished,
    StepCommitted,
    WorldFormed,
    read_records,
)
from elastic.history import audit_run
from elastic.local.cluster import Cluster, ClusterSpec
from elastic.local.etcd import EtcdServer

Say = Callable[[str], None]

STEPS = 300
KILL_AT_STEP = 60
LOSS_RATIO = 0.8
LOSS_STEPS = 20


class DemoFailed(ElasticError):
    """Something that the demo promises did not happen."""


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What really happened."""

    recovery_s: float
    lost_steps: int
    join_s: float
    first_loss: float
    last_loss: float
    account: Account
    scraped: dict[str, float]


def run_demo(*, say: Say, directory: Path | None = None, clock: Clock = SYSTEM_CLOCK) -> DemoResult:
    """Run it all; about a minute and a half on two cores.

    Raises:
        ElasticError: something of it did not happen; the message says what.
    """
    work = directory or Path(tempfile.mkdtemp(prefix="elastic-demo-"))
    work.mkdir(parents=True, exist_ok=True)
    say(f"everything of this run lies in {work}")
    with EtcdServer(work / "etcd") as etcd:
        say(f"etcd {etcd.version()} at {etcd.endpoint}, API v2 disabled")
        spec = ClusterSpec(
            directory=work,
            etcd_endpoint=etcd.endpoint,
            environ={
                "ELASTIC__TRAINING__STEPS": str(STEPS),
                "ELASTIC__CHECKPOINT__SAVE_INTERLEAVED_STEPS": "20",
            },
        )
        narrator = Narrator(say)
        with Cluster(spec, on_record=narrator.tell) as cluster:
            return _play(cluster, say, clock)


def _play(cluster: Cluster, say: Say, clock: Clock) -> DemoResult:
    say("starting 3 nodes, each: torchrun --nnodes=1:4 --rdzv_backend=etcd elastic/worker.py")
    for name in ("node1", "node2", "node3"):
        cluster.start(name)
    cluster.wait_step(KILL_AT_STEP, world_size=3, limit_s=300)

    before_kill = cluster.now()
    agent, workers = cluster.nodes["node2"].kill()
    say(f"KILLED node2: agent {agent}, worker {', '.join(map(str, workers))}")
    if not workers:
        raise DemoFailed("node2 had no worker to kill")
    cluster.wait_world(2, since=before_kill)
    recovered = cluster.wait(
        lambda r: isinstance(r.event, Recovered), what="a step after the kill", limit_s=120, since=before_kill
    )

    before_join = cluster.now()
    began_s = clock.monotonic_s()
    say("starting node4")
    cluster.start("node4")
    cluster.wait_world(3, limit_s=120, since=before_join)
    joined = cluster.wait_step(1, world_size=3, since=before_join)
    join_s = clock.monotonic_s() - began_s
    assert isinstance(recovered.event, Recovered)
    assert isinstance(joined.event, StepCommitted)
    cluster.wait_step(joined.event.iteration + 20, world_size=3, since=before_join)
    scraped = _scrape(cluster, say)

    for name in ("node1", "node3", "node4"):
        code = cluster.wait_exit(name, limit_s=300)
        if code != 0:
            raise DemoFailed(f"{name} ended with exit code {code}; see {cluster.nodes[name].log}")
    return _account(cluster, recovered.event, join_s, scraped)


def _scrape(cluster: Cluster, say: Say) -> dict[str, float]:
    """The job's state from the exporters of the nodes that live, as Prometheus would get it."""
    from prometheus_client.parser import text_string_to_metric_families

    dead = {"node2"}
    exporters = {
        r.node: r.event.exporter
        for r in cluster.follower.records
        if isinstance(r.event, AgentStarted) and r.node not in dead
    }
    values: dict[str, float] = {}
    for node, address in exporters.items():
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        families = {s.name: s.value for f in text_string_to_metric_families(text) for s in f.samples}
        for name in ("elastic_world_size", "elastic_generation", "elastic_step"):
            if name not in families:
                raise DemoFailed(f"the exporter of {node} at {address} does not tell {name}")
            values[name] = families[name]
        rescales = [s for f in text_string_to_metric_families(text) for s in f.samples]
        values["elastic_rescales_total"] = values.get("elastic_rescales_total", 0.0) + sum(
            s.value for s in rescales if s.name == "elastic_rescales_total"
        )
    say("scraped " + "  ".join(f"{name} {value:g}" for name, value in sorted(values.items())))
    if values["elastic_world_size"] != 3 or values["elastic_rescales_total"] != 2:
        raise DemoFailed(f"the metrics do not tell what happened: {values}")
    return values


def _account(cluster: Cluster, recovered: Recovered, join_s: float, scraped: dict[str, float]) -> DemoResult:
    records = read_records(cluster.save_path / "events")
    losses = {r.event.iteration: r.event.loss for r in records if isinstance(r.event, StepCommitted)}
    ordered = [losses[step] for step in sorted(losses)]
    result = DemoResult(
        recovery_s=recovered.seconds,
        lost_steps=recovered.lost_steps,
        join_s=join_s,
        first_loss=fmean(ordered[:LOSS_STEPS]),
        last_loss=fmean(ordered[-LOSS_STEPS:]),
        account=audit_run(cluster.save_path),
        scraped=scraped,
    )
    _check(result, records)
    return result


def _check(result: DemoResult, records: list[Record]) -> None:
    if not any(isinstance(r.event, RunFinished) and r.event.iteration >= 1 for r in records):
        raise DemoFailed("no worker said that the run finished")
    if not result.account.exact:
        raise DemoFailed(f"the sample account does not add up: {result.account}")
    if not result.last_loss < LOSS_RATIO * result.first_loss:
        raise DemoFailed(f"the loss went from {result.first_loss:.3f} to {result.last_loss:.3f} only")


def describe(result: DemoResult) -> str:
    """The short account at the end."""
    counted = result.account
    rows = [
        ("seconds from the kill noticed to the next step", f"{result.recovery_s:.2f}"),
        ("steps to do again after the kill", str(result.lost_steps)),
        ("seconds from starting node4 to its first step", f"{result.join_s:.2f}"),
        ("samples used twice", str(counted.used_twice)),
        ("samples never used", str(counted.never_used)),
        ("steps, samples", f"{counted.steps}, {counted.samples}"),
        (f"mean loss of the first and last {LOSS_STEPS} steps", f"{result.first_loss:.3f} -> {result.last_loss:.3f}"),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in rows)


class Narrator:
    """One readable line for each event that a person wants to see."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._told: set[str] = set()

    def tell(self, record: Record) -> None:
        """Say it, unless another node said the same already."""
        line = self._line(record)
        if line is not None and line not in self._told:
            self._told.add(line)
            self._say(line)

    def _line(self, record: Record) -> str | None:
        event = record.event
        match event:
            case AgentStarted():
                return f"{record.node}: agent up, metrics at http://{event.exporter}/metrics"
            case WorldFormed():
                return f"generation {record.generation}: world size {event.world_size} on {', '.join(event.nodes)}"
            case RoundOpened():
                return f"generation {record.generation} ends: {event.reason}"
            case NodeLost():
                return f"lost {event.lost}: {event.reason}"
            case Rescaled():
                return f"rescaled {event.direction}: {event.old_world_size} -> {event.new_world_size} ({event.cause})"
            case Restored() if record.rank == 0:
                return f"generation {record.generation}: goes on from step {event.iteration} ({event.tier})"
            case Recovered():
                return f"RECOVERED in {event.seconds:.2f} s, {event.lost_steps} steps to do again"
            case StepCommitted() if record.rank == 0 and event.iteration % 50 == 0:
                return f"step {event.iteration}  loss {event.loss:.3f}  world {event.world_size}"
            case CheckpointSaved(tier="disk") if event.iteration % 100 == 0:
                return f"saved step {event.iteration} ({event.bytes / 1e6:.0f} MB in {event.seconds:.2f} s)"
            case JobEnded():
                return f"{record.node}: {event.outcome}"
        return None
