"""Sixteen real agents on one host whose workers fail, and which die themselves, at random moments."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from elastic.clock import SYSTEM_CLOCK
from elastic.events import StepCommitted, WorkerLost, WorldFormed
from elastic.local.cluster import Cluster, ClusterSpec
from elastic.local.etcd import EtcdServer
from elastic.local.node import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

AGENTS, DEATHS, FAILURES = 16, 5, 10


def assert_one_world_per_generation(run: Cluster) -> None:
    """Nobody saw another world than the others, and nobody went back."""
    worlds: dict[int, set[tuple[str, ...]]] = {}
    seen: dict[str, list[int]] = {}
    # By their times: a node's two agents have a file each, and which of them is read first says nothing.
    for record in sorted(run.follower.records, key=lambda record: record.time_s):
        if isinstance(record.event, WorldFormed):
            worlds.setdefault(record.generation, set()).add(record.event.nodes)
            seen.setdefault(record.node, []).append(record.generation)
    assert {generation: nodes for generation, nodes in worlds.items() if len(nodes) != 1} == {}
    assert {node: numbers for node, numbers in seen.items() if numbers != sorted(set(numbers))} == {}


def test_sixteen_agents_fail_and_die_at_random_moments(tmp_path: Path, etcd: EtcdServer) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    environ = {
        "PYTHONPATH": str(ROOT),
        "ODDS": "0.005",  # one of sixteen fails each 12 steps
        "FINISH": str(tmp_path / "finish"),
        "ELASTIC__RENDEZVOUS__TTL_S": "60",
        "ELASTIC__METRICS__ENABLED": "false",
        "ELASTIC__LAUNCH__READY_WORKERS": "false",  # there is no torch in these to wait for
        "OMP_NUM_THREADS": "1",
    }
    spec = ClusterSpec(
        directory=tmp_path,
        etcd_endpoint=etcd.endpoint,
        environ=environ,
        script="tests/harness/light_worker.py",
        nnodes=f"1:{AGENTS}",
    )
    with Cluster(spec) as run:
        names = [f"n{number}" for number in range(AGENTS)]
        for name in names:
            run.start(name)
        run.wait_step(1, world_size=AGENTS, limit_s=120)
        at = run.now()
        for _ in range(DEATHS):
            SYSTEM_CLOCK.sleep(draw.random() * 3)  # the random moment
            dead = draw.choice(names)
            run.nodes[dead].kill()
            run.start(dead)
        run.wait(lambda _: failures(run, at) >= FAILURES, what=f"{FAILURES} failures", limit_s=120)
        after = run.now()
        run.wait_step(1, world_size=AGENTS, limit_s=120, since=after)
        (tmp_path / "finish").touch()
        ends = {name: run.wait_exit(name, limit_s=60) for name in names}
        assert set(ends.values()) == {0}, (ends, f"seed {seed}")
        assert_one_world_per_generation(run)
        generations = {r.generation for r in run.follower.records[at:] if isinstance(r.event, StepCommitted)}
        assert len(generations) > 1


def failures(run: Cluster, since: int) -> int:
    return sum(isinstance(record.event, WorkerLost) for record in run.follower.records[since:])
