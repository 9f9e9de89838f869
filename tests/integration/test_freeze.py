"""Frozen agents and workers: the others go on within seconds, and nothing that a thawed one does is accepted."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from elastic.events import Cause, RoundOpened, WorkerLost, WorldFormed, read_records
from elastic.local.cluster import Cluster
from elastic.local.etcd import EtcdServer
from tests.harness.etcd_admin import end_lease
from tests.harness.faults import Frozen, came_to
from tests.harness.survival import cluster, exact_account, leave_all

pytestmark = pytest.mark.integration

STEPS = 100_000
LONG_LEASE = {"ELASTIC__RENDEZVOUS__TTL_S": "60"}


def seconds_to_step(run: Cluster, *, frozen_at_s: float, since: int, world_size: int) -> float:
    """From the freeze to the first step of the survivors, who stay."""
    run.wait(lambda r: isinstance(r.event, RoundOpened), what="a round", limit_s=20, since=since)
    step = run.wait_step(1, world_size=world_size, since=since)
    return step.time_s - frozen_at_s


def start_three(run: Cluster) -> tuple[str, ...]:
    """Nodes in rank order, once they train together."""
    for name in ("a", "b", "c"):
        run.start(name)
    step = run.wait_step(60, world_size=3)
    worlds = [r for r in run.follower.records if isinstance(r.event, WorldFormed) and r.generation == step.generation]
    return worlds[0].event.nodes  # type: ignore[attr-defined]


@pytest.mark.exhaustive
@pytest.mark.parametrize("rank", [0, 2])
def test_a_frozen_node_is_left_behind_and_comes_back(tmp_path: Path, etcd: EtcdServer, rank: int) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=STEPS, **LONG_LEASE) as run:
        victim = start_three(run)[rank]
        before = run.now()
        with Frozen(run.nodes[victim]) as frozen:
            assert frozen.fired
            waited_s = seconds_to_step(run, frozen_at_s=frozen.at_s, since=before, world_size=2)
            run.wait_step(100, world_size=2, since=before)
            after = run.now()
        print(f"stepping after {waited_s:.2f} s")
        assert waited_s < 3, "by the lease it would be 60 s"
        run.wait_step(1, world_size=3, since=after)
        leave_all(run)
        exact_account(run)


@pytest.mark.exhaustive
def test_a_frozen_agent_whose_worker_asks_it_for_a_commit(tmp_path: Path, etcd: EtcdServer) -> None:
    """Its worker runs on up to the next save, which nobody confirms; then the others go on without it."""
    with cluster(tmp_path, etcd.endpoint, steps=STEPS, **LONG_LEASE) as run:
        victim = start_three(run)[0]
        before = run.now()
        with Frozen(run.nodes[victim], workers=False) as frozen:
            assert frozen.fired
            step = run.wait_step(1, world_size=2, limit_s=30, since=before)
            run.wait_step(step.event.iteration + 30, world_size=2, since=before)  # type: ignore[attr-defined]
            after = run.now()
        run.wait_step(1, world_size=3, since=after)
        leave_all(run)
        exact_account(run)


@pytest.mark.exhaustive
def test_all_are_at_work_when_a_frozen_agents_lease_ends(tmp_path: Path, etcd: EtcdServer) -> None:
    """Its worker runs on, so nobody complains: the next world is formed directly, over workers of the last one."""
    with cluster(tmp_path, etcd.endpoint, steps=STEPS, **LONG_LEASE) as run:
        victim = start_three(run)[0]
        before = run.now()
        with Frozen(run.nodes[victim], workers=False) as frozen:
            assert frozen.fired
            end_lease(etcd.endpoint, node=victim)
            formed = run.wait(lambda r: isinstance(r.event, WorldFormed), what="a world", limit_s=30, since=before)
            run.wait_step(100, world_size=2, since=before)
            after = run.now()
        assert "2 members go on from generation" in formed.event.reason  # type: ignore[attr-defined]
        run.wait_step(1, world_size=3, since=after)
        leave_all(run)
        exact_account(run)


@pytest.mark.exhaustive
def test_a_worker_that_somebody_stopped_is_replaced(tmp_path: Path, etcd: EtcdServer) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=600) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(60, world_size=2)
        before = run.now()
        (victim,) = run.nodes["b"].workers()
        os.kill(victim, signal.SIGSTOP)
        assert came_to(victim, "T")
        lost = run.wait(lambda r: isinstance(r.event, WorkerLost) and r.event.pid == victim, what="its end", limit_s=10)
        assert lost.event.cause is Cause.WORKER_SIGNAL  # type: ignore[attr-defined]
        run.wait_step(1, world_size=2, limit_s=30, since=before)
        assert [run.wait_exit(name) for name in ("a", "b")] == [0, 0]
        assert exact_account(run).steps == 600
        assert len(read_records(run.save_path / "events")) > 0
