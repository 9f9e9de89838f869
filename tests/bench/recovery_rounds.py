"""One round of ours in the recovery benchmark: faults one after the other on real nodes, each timed stage by stage."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from elastic.events import (
    GroupReady,
    Record,
    Restored,
    StepCommitted,
    WorkerStarted,
    WorkerStayed,
    WorldFormed,
    read_records,
)
from elastic.local.cluster import Cluster, ClusterSpec
from elastic.local.node import ROOT

SETTINGS = {
    "ELASTIC__JOB__TARGET": "tests.bench.small_lm:job",
    "ELASTIC__TRAINING__GLOBAL_BATCH_SIZE": "12",
    "ELASTIC__TRAINING__MICRO_BATCH_SIZE": "4",
    "ELASTIC__TRAINING__STEPS": "1000000",
    "ELASTIC__CHECKPOINT__SAVE_INTERLEAVED_STEPS": "10",
}
DEALT = SETTINGS | {"ELASTIC__TRAINING__STRATEGY": "fsdp2", "ELASTIC__CHECKPOINT__MEMORY_EVERY_STEPS": "1"}
"""A copy after each step, so that no more than the step in flight is done again."""
STAGES = ("agree", "spawn", "init", "restore", "first_step")
_LIMIT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """A fault that was recovered from. Seconds."""

    seconds: float
    """To the first step committed in a newer generation."""
    step_s: float
    """A step before it: the median of the last ten."""
    stages: dict[str, float]
    """From the fault, or the end of the stage before, to the last rank's end of it."""
    lost_steps: int

    @property
    def beyond_s(self) -> float:
        """What it took beyond the one step that has to be done again."""
        return self.seconds - self.step_s


@dataclass(kw_only=True)
class OwnRound:
    """One round."""

    start_s: float
    worker: list[Recovery] = field(default_factory=list)
    leader: list[Recovery] = field(default_factory=list)
    agent: list[Recovery] = field(default_factory=list)
    node: list[Recovery] = field(default_factory=list)
    last_but_one: list[Recovery] = field(default_factory=list)
    join_pause_s: float = 0.0
    dealt_worker: list[Recovery] = field(default_factory=list)
    dealt_node: list[Recovery] = field(default_factory=list)

    @property
    def faults(self) -> tuple[list[Recovery], ...]:
        """All recoveries, by fault."""
        dealt = (self.dealt_worker, self.dealt_node)
        return (self.worker, self.leader, self.agent, self.node, self.last_but_one, *dealt)


def own_round(endpoint: str, directory: Path, *, worker_kills: int) -> OwnRound:
    """Start three nodes; kill workers, rank 0's node, an agent, nodes down to one; let one join again."""
    spec = ClusterSpec(directory=directory, etcd_endpoint=endpoint, environ=SETTINGS)
    with Cluster(spec) as cluster:
        began = time.time()
        for name in ("a", "b", "c"):
            cluster.start(name)
        found = OwnRound(start_s=cluster.wait_step(1, world_size=3).time_s - began)
        for number in range(worker_kills):
            victim = "abc"[number % 3]
            found.worker.append(fault(cluster, lambda victim=victim: _kill(cluster, victim), world_size=3))
        found.agent.append(fault(cluster, lambda: os.kill(cluster.nodes["c"].pid, signal.SIGKILL), world_size=2))
        _join(cluster, "d", world_size=3)
        found.node.append(fault(cluster, lambda: cluster.nodes["d"].kill(), world_size=2))
        _join(cluster, "e", world_size=3)
        first = _first_node(cluster)
        found.leader.append(fault(cluster, lambda: cluster.nodes[first].kill(), world_size=2))
        last = _first_node(cluster)
        found.last_but_one.append(fault(cluster, lambda: cluster.nodes[last].kill(), world_size=1))
        found.join_pause_s = _join(cluster, "f", world_size=2)
    return found


def dealt_round(found: OwnRound, endpoint: str, directory: Path, *, worker_kills: int) -> None:
    """The same with dealt out parameters: workers killed, then a node."""
    with Cluster(ClusterSpec(directory=directory, etcd_endpoint=endpoint, environ=DEALT)) as cluster:
        for name in ("a", "b", "c"):
            cluster.start(name)
        cluster.wait_step(1, world_size=3)
        for number in range(worker_kills):
            victim = "abc"[number % 3]
            found.dealt_worker.append(fault(cluster, lambda victim=victim: _kill(cluster, victim), world_size=3))
        found.dealt_node.append(fault(cluster, lambda: cluster.nodes["c"].kill(), world_size=2))


def _kill(cluster: Cluster, name: str) -> None:
    (worker,) = cluster.nodes[name].workers()
    os.kill(worker, signal.SIGKILL)


def _first_node(cluster: Cluster) -> str:
    cluster.now()
    world = [r.event for r in cluster.follower.records if isinstance(r.event, WorldFormed)][-1]
    return world.nodes[0]


def fault(cluster: Cluster, strike: Callable[[], object], *, world_size: int) -> Recovery:
    """Let it happen once training has settled, and wait until it goes on, at this world size."""
    settle(cluster, world_size=None)
    since = cluster.now()
    before = cluster.follower.records
    generation = max(r.generation for r in before)
    steps = [r.event.seconds for r in before if isinstance(r.event, StepCommitted) and r.generation == generation]
    at = time.time()
    strike()
    cluster.wait(
        lambda r: isinstance(r.event, StepCommitted) and r.generation > generation,
        what="a step after the fault",
        limit_s=_LIMIT_S,
        since=since,
    )
    settle(cluster, world_size=world_size)
    return recovery(cluster.follower.records, generation=generation, at_s=at, step_s=median(steps[-30:]))


def recovery(records: Sequence[Record], *, generation: int, at_s: float, step_s: float) -> Recovery:
    """What the records tell of the way out of a generation that broke at `at_s`."""
    later = [r for r in records if r.generation > generation]
    newest = min(r.generation for r in later if isinstance(r.event, StepCommitted))
    ours = [r for r in later if r.generation == newest]
    steps = [r for r in ours if isinstance(r.event, StepCommitted)]
    first = min(r.time_s for r in steps)
    ends = [
        max((r.time_s for r in ours if isinstance(r.event, kinds) and r.time_s <= first), default=at_s)
        for kinds in (WorldFormed, (WorkerStarted, WorkerStayed), GroupReady, Restored)
    ]
    ends.append(first)
    ends = list(itertools.accumulate(ends, max))
    reached = max(
        r.event.iteration for r in records if isinstance(r.event, StepCommitted) and r.generation == generation
    )
    return Recovery(
        seconds=first - at_s,
        step_s=step_s,
        stages={name: end - begin for name, begin, end in zip(STAGES, [at_s, *ends], ends, strict=False)},
        lost_steps=max(0, reached + 1 - min(r.event.iteration for r in steps)),
    )


def _join(cluster: Cluster, name: str, *, world_size: int) -> float:
    """Let a node join; the longest gap between two steps around it: how long training paused."""
    since = cluster.now()
    cluster.start(name)
    cluster.wait_step(1, world_size=world_size, since=since)
    steps = sorted(r.time_s for r in cluster.follower.records[since:] if isinstance(r.event, StepCommitted))
    return max(later - earlier for earlier, later in itertools.pairwise(steps))


def settle(cluster: Cluster, *, world_size: int | None) -> None:
    """Wait for a few steps more."""
    since = cluster.now()
    reached = max(r.event.iteration for r in cluster.follower.records if isinstance(r.event, StepCommitted))
    cluster.wait_step(reached + 15, world_size=world_size, since=since)


def cold_starts_s(directory: Path, *, count: int = 3) -> float:
    """So many cold `torchrun --standalone` of the same job at once: from their start to the last one's first step."""
    began = time.time()
    runs = []
    for number in range(count):
        environ = {
            **os.environ,
            **SETTINGS,
            "ELASTIC__TRAINING__STEPS": "2",
            "ELASTIC__CHECKPOINT__SAVE_PATH": str(directory / str(number)),
        }
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "elastic/worker.py"]
        runs.append(
            subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        )
    for run in runs:
        if run.wait(timeout=_LIMIT_S) != 0:
            raise RuntimeError(f"a cold start failed with {run.returncode}")
    firsts = [
        min(r.time_s for r in read_records(directory / str(number) / "events") if isinstance(r.event, StepCommitted))
        for number in range(count)
    ]
    return max(firsts) - began
