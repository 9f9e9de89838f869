"""Membership with real agents and workers: who comes and goes, when, how many at once, and what it costs the others."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from elastic.clock import SYSTEM_CLOCK
from elastic.events import (
    AgentStarted,
    Cause,
    Fencing,
    JobEnded,
    NodeLost,
    Recovered,
    WorkerLost,
    WorldFormed,
    read_records,
)
from elastic.local.cluster import Cluster
from elastic.local.etcd import EtcdServer
from tests.harness.survival import cluster, exact_account, leave_all

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

LONG_LEASE = {"ELASTIC__RENDEZVOUS__TTL_S": "60"}
"""So that nothing that comes sooner can be a lease that ran out."""


def nodes_of(run: Cluster, generation: int) -> tuple[str, ...]:
    worlds = [r for r in run.follower.records if isinstance(r.event, WorldFormed) and r.generation == generation]
    return worlds[0].event.nodes  # type: ignore[attr-defined]


@pytest.mark.parametrize("pause_s", [0.1, 1.0, 5.0, 20.0])
def test_quick_rejoin(tmp_path: Path, etcd: EtcdServer, pause_s: float) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=100_000, **LONG_LEASE) as run:
        for name in ("a", "b", "c"):
            run.start(name)
        first = run.wait_step(40, world_size=3)
        at = run.now()
        run.nodes["b"].kill()
        SYSTEM_CLOCK.sleep(pause_s)  # the fault's own length
        run.start("b")
        step = run.wait_step(1, world_size=3, limit_s=60, since=at, after=first.generation)
        assert step.generation <= first.generation + 2, "at most one world without it"
        assert sorted(nodes_of(run, step.generation)) == ["a", "b", "c"]
        leave_all(run)
        exact_account(run)


def test_four_to_one_the_leader_and_rank_0_among_the_lost(tmp_path: Path, etcd: EtcdServer) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=100_000, **LONG_LEASE) as run:
        run.start("a")
        run.wait(lambda r: isinstance(r.event, AgentStarted), what="the leader to be", limit_s=30)
        for name in ("b", "c", "d"):
            run.start(name)
        generation = run.wait_step(40, world_size=4).generation
        first = nodes_of(run, generation)[0]
        last = next(name for name in ("d", "c") if name != first)
        at, lost_ones = run.now(), [node for name, node in run.nodes.items() if name != last]
        for node in lost_ones:  # so that none of them forms a world, and dies before it has told of it
            node.signal(signal.SIGSTOP)
        for node in lost_ones:
            node.kill()
        step = run.wait_step(1, world_size=1, limit_s=30, since=at)
        lost = {r.event.lost for r in run.follower.records[at:] if isinstance(r.event, NodeLost)}
        assert lost == {"a", "b", "c", "d"} - {last}
        assert step.generation <= generation + 3
        leave_all(run)
        exact_account(run)


def test_a_loss_during_the_rendezvous_itself(tmp_path: Path, etcd: EtcdServer) -> None:
    # Workers that stay tell of no end: then nothing would show when a node asks for the next world.
    with cluster(tmp_path, etcd.endpoint, steps=100_000, ELASTIC__LAUNCH__REJOIN="false", **LONG_LEASE) as run:
        for name in ("a", "b", "c"):
            run.start(name)
        run.wait_step(40, world_size=3)
        at, killed = run.now(), []

        def kill_in_the_round(record) -> None:
            if (
                killed == ["b"] and record.node == "c" and isinstance(record.event, WorkerLost)
            ):  # it asks for a world now
                killed.append("c")
                run.nodes["c"].kill()

        run.follower._on_record = kill_in_the_round
        run.nodes["b"].kill()
        killed.append("b")
        run.wait_step(1, world_size=1, limit_s=60, since=at)
        assert killed == ["b", "c"]
        leave_all(run)
        exact_account(run)


def test_a_spare_takes_over_at_once_and_leaves_with_success(tmp_path: Path, etcd: EtcdServer) -> None:
    # A spare asks to be let in once it can fork workers, of which no event tells; without that it asks at once.
    with cluster(
        tmp_path, etcd.endpoint, steps=600, nnodes="1:2", ELASTIC__LAUNCH__READY_WORKERS="false", **LONG_LEASE
    ) as run:
        for name in ("a", "b"):
            run.start(name)
        first = run.wait_step(1, world_size=2)
        for name in ("c", "d"):
            run.start(name)
            run.wait(lambda r, n=name: r.node == n and isinstance(r.event, AgentStarted), what=name, limit_s=30)
        before = run.wait_step(150, world_size=2)
        assert before.generation == first.generation, "spares disturb nobody"
        at = run.now()
        run.nodes["a"].kill()
        step = run.wait_step(1, world_size=2, limit_s=30, since=at, after=first.generation)
        assert step.generation == first.generation + 1, "no world of one in between"
        ends = {name: run.wait_exit(name, limit_s=120) for name in ("b", "c", "d")}
        assert ends == {"b": 0, "c": 0, "d": 0}
        assert exact_account(run).steps == 600


def test_nodes_with_different_numbers_of_workers(tmp_path: Path, etcd: EtcdServer) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=300) as run:
        run.start("a")
        run.start("b", options=("--nproc-per-node=2",))
        step = run.wait_step(40, world_size=3)
        assert sorted(nodes_of(run, step.generation)) == ["a", "b"]
        assert len(run.nodes["b"].workers()) == 2
        at = run.now()
        run.nodes["b"].kill()
        run.wait_step(1, world_size=1, since=at)
        assert run.wait_exit("a", limit_s=120) == 0
        assert exact_account(run).steps == 300


def test_two_agents_of_one_name_the_later_wins(tmp_path: Path, etcd: EtcdServer) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=100_000, **LONG_LEASE) as run:
        run.start("b")
        earlier = run.start("a")
        first = run.wait_step(40, world_size=2)
        at = run.now()
        try:
            run.start("a")
            assert earlier.wait(limit_s=60) == 76
        finally:
            earlier.end()
        fenced = [r.event.reason for r in read_records(run.save_path / "events") if isinstance(r.event, Fencing)]
        assert any("the later one has it" in reason for reason in fenced), fenced
        run.wait_step(1, world_size=2, limit_s=60, since=at, after=first.generation)
        leave_all(run)
        exact_account(run)


def test_several_agents_of_one_host_without_names(tmp_path: Path, etcd: EtcdServer) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=400) as run:
        for name in ("first", "second"):
            run.start(name, prefix=("env", "-u", "ELASTIC_NODE"))
        run.wait_step(40, world_size=2)
        at = run.now()
        run.nodes["second"].kill()
        recovered = run.wait(lambda r: isinstance(r.event, Recovered), what="recovery", limit_s=30, since=at)
        assert recovered.event.cause in (Cause.NODE_LOST, Cause.PEER_LOST)  # type: ignore[attr-defined]
        assert run.wait_exit("first", limit_s=120) == 0
        assert exact_account(run).steps == 400


def test_min_nodes_that_do_not_come(tmp_path: Path, etcd: EtcdServer) -> None:
    limited = {"ELASTIC__RENDEZVOUS__JOIN_TIMEOUT_S": "4", "ELASTIC__RENDEZVOUS__LATE_WAIT_S": "2"}
    with cluster(tmp_path, etcd.endpoint, steps=100_000, nnodes="2:4", **limited) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(40, world_size=2)
        run.nodes["b"].kill()
        assert run.wait_exit("a", limit_s=60) == 75
        ended = [r.event for r in read_records(run.save_path / "events") if isinstance(r.event, JobEnded)]
        assert "1 of at least 2 nodes came within 4 s" in ended[-1].reason


def test_a_node_whose_workers_fail_is_left_out_and_the_next_agent_there_rests(tmp_path: Path, etcd: EtcdServer) -> None:
    broken = {"ELASTIC__JOB__TARGET": "tests.harness.small_job:always_fails"}
    with cluster(tmp_path, etcd.endpoint, steps=100_000, **LONG_LEASE) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(40, world_size=2)
        run.start("c", **broken)
        assert run.wait_exit("c", limit_s=90) == 1
        assert "broken on purpose" in run.nodes["c"].log.read_text()
        step = run.wait_step(1, world_size=2, since=run.now())
        at = run.now()
        run.start("c", **broken)
        run.wait(
            lambda r: r.node == "c" and isinstance(r.event, AgentStarted), what="another agent", limit_s=30, since=at
        )
        reached = step.event.iteration + 200  # type: ignore[attr-defined]
        assert run.wait_step(reached, world_size=2, since=at).generation == step.generation, "it is let in later"
        leave_all(run)
        exact_account(run)
