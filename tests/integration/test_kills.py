"""Every signal, to agent, worker or both, on rank 0's node and on others, of worlds of 2, 3 and 4: all go on as one."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path

import pytest

from elastic.events import AgentStarted, Record, RunFinished, StepCommitted, WorldFormed
from elastic.local.cluster import Cluster, ClusterSpec
from elastic.local.etcd import EtcdServer
from elastic.local.node import ROOT
from tests.harness.faults import came_to
from tests.harness.survival import SETTINGS, cluster, exact_account, leave_all

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

FAULTS = tuple(itertools.product((signal.SIGKILL, signal.SIGTERM, signal.SIGINT), ("agent", "worker", "both")))


def all_take_part(run: Cluster, generation: int, *, size: int) -> None:
    """Every rank does a step of this generation, and all mean the same world."""
    for rank in range(size):
        step = run.wait(
            lambda r, rank=rank: isinstance(r.event, StepCommitted) and (r.generation, r.rank) == (generation, rank),
            what=f"a step of rank {rank} in generation {generation}",
            limit_s=30,
        )
        assert step.event.world_size == size  # type: ignore[attr-defined]


def nodes_of(run: Cluster, generation: int) -> tuple[str, ...]:
    worlds = [r.event for r in run.follower.records if isinstance(r.event, WorldFormed) and r.generation == generation]
    assert len({world.nodes for world in worlds}) == 1, worlds  # type: ignore[attr-defined]
    return worlds[0].nodes  # type: ignore[attr-defined,no-any-return]


def a_step_after(run: Cluster, generation: int, *, size: int, since: int) -> Record:
    """A step of a newer generation of this size."""
    return run.wait(
        lambda r: isinstance(r.event, StepCommitted) and r.generation > generation and r.event.world_size == size,
        what=f"a step of {size} after generation {generation}",
        limit_s=90,
        since=since,
    )


def strike(run: Cluster, name: str, number: signal.Signals, whom: str) -> None:
    node = run.nodes[name]
    (worker,) = node.workers()
    for pid in {"agent": [node.pid], "worker": [worker], "both": [worker, node.pid]}[whom]:
        os.kill(pid, number)
    if whom != "worker":
        code = run.wait_exit(name, limit_s=45)
        assert code == (75 if number is not signal.SIGKILL else -signal.SIGKILL)
    assert came_to(worker, "", "Z", limit_s=30), "no orphan"


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_signal(tmp_path: Path, etcd: EtcdServer, size: int) -> None:
    names = ["node2", "node10", "node66", "node100"][:size]
    with cluster(tmp_path, etcd.endpoint, steps=1_000_000, ELASTIC__RENDEZVOUS__TTL_S="60") as run:
        for name in names:
            run.start(name)
        step = run.wait_step(20, world_size=size)
        for count, (number, whom) in enumerate(FAULTS):
            before = run.now()
            victim = nodes_of(run, step.generation)[0 if (count + size) % 2 else -1]
            strike(run, victim, number, whom)
            if whom != "worker":
                if size > 1:
                    run.wait_step(1, world_size=size - 1, since=before)
                before = run.now()
                run.start(victim)
            # At its size again, in a newer generation, in which all take part.
            step = a_step_after(run, step.generation, size=size, since=before)
            all_take_part(run, step.generation, size=size)
        leave_all(run)
        found = exact_account(run)
        # Only who was killed by force may take a step with it that the others had not done yet.
        assert found.recomputed_steps <= 3


def test_the_nodes_stand_in_natural_order_and_a_spare_fills_the_hole(tmp_path: Path, etcd: EtcdServer) -> None:
    environ = {**SETTINGS, "ELASTIC__TRAINING__STEPS": "1000000", "ELASTIC__RENDEZVOUS__TTL_S": "60"}
    spec = ClusterSpec(directory=tmp_path, etcd_endpoint=etcd.endpoint, environ=environ, nnodes="3:3")
    with Cluster(spec) as run:
        for name in ("node66", "node10", "node2"):
            run.start(name)
        generation = run.wait_step(20, world_size=3).generation
        assert nodes_of(run, generation) == ("node2", "node10", "node66")
        run.start("node1")
        run.wait(lambda r: isinstance(r.event, AgentStarted) and r.node == "node1", what="the spare", limit_s=60)
        before = run.now()
        run.nodes["node10"].kill()
        step = run.wait_step(1, world_size=3, limit_s=60, since=before, after=generation)
        assert nodes_of(run, step.generation) == ("node2", "node1", "node66"), "survivors keep their ranks"
        leave_all(run)
        exact_account(run)


def test_an_agent_killed_while_it_waits_for_the_last_fails_nobody(tmp_path: Path, etcd: EtcdServer) -> None:
    environ = {**SETTINGS, "ELASTIC__TRAINING__STEPS": "30", "LATE_S": "8", "PYTHONPATH": str(ROOT)}
    spec = ClusterSpec(
        directory=tmp_path,
        etcd_endpoint=etcd.endpoint,
        environ=environ,
        nnodes="3:3",
        script="tests/harness/late_finish.py",
    )
    with Cluster(spec) as run:
        for name in ("a", "b", "c"):
            run.start(name)
        finished = run.wait(lambda r: isinstance(r.event, RunFinished), what="the end", limit_s=120)
        nodes = nodes_of(run, finished.generation)
        (worker,) = run.nodes[nodes[1]].workers() or [0]
        assert not worker or came_to(worker, "", "Z", limit_s=30)
        assert run.nodes[nodes[2]].workers(), "the last one has not ended yet"
        run.nodes[nodes[1]].kill()
        assert [run.wait_exit(nodes[rank], limit_s=30) for rank in (0, 2)] == [0, 0]
