"""Workers that stay: real torchrun agents, real kills; who survives keeps its process and its state."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from elastic.events import (
    Record,
    Recovered,
    Restored,
    StepCommitted,
    WorkerStarted,
    WorkerStayed,
    WorldFormed,
    read_records,
)
from elastic.local.cluster import Cluster
from elastic.local.etcd import EtcdServer
from elastic.world import World
from tests.harness.small_job import build_model
from tests.harness.survival import cluster, durable, exact_account, leave_all
from tests.harness.until import until
from tests.integration.test_job_wide_agents import scraped

pytestmark = pytest.mark.integration


NO_COPIES = {"ELASTIC__CHECKPOINT__MEMORY_EVERY_STEPS": "0"}
"""Otherwise a copy in the node's own memory may be of the very step that all go on from, and is nearer than a peer."""


HEADERS_BYTES = 2 * 8192
"""Most that model and optimizer take up beside their tensors: a header each, in whole pages."""


def state_bytes() -> int:
    """Of the small job's tensors: each parameter and its two moments, and how often it was stepped."""
    parameters = list(build_model(World()).parameters())
    return sum(3 * each.nbytes + 4 for each in parameters)


def pids(run: Cluster, *names: str) -> list[list[int]]:
    return [run.nodes[name].workers() for name in names]


def recovered(run: Cluster, *, since: int) -> Recovered:
    found = run.wait(lambda r: isinstance(r.event, Recovered), what="recovery", limit_s=60, since=since).event
    assert isinstance(found, Recovered)
    return found


def kinds(records: list[Record], kind: type) -> int:
    return sum(isinstance(record.event, kind) for record in records)


def tiers(records: list[Record]) -> list[str]:
    return sorted(record.event.tier for record in records if isinstance(record.event, Restored))


def assert_kept(found: list[str], *, workers: int) -> None:
    """The new one got the state of the others, and so did whoever was a step behind."""
    assert found.count("peer") in range(1, workers)
    assert found.count("process") == workers - found.count("peer")


def end(run: Cluster, *, world_size: int, since: int) -> None:
    """Some more steps, and an account that is clean."""
    reached = max(r.event.iteration for r in run.follower.records if isinstance(r.event, StepCommitted))
    run.wait_step(reached + 20, world_size=world_size, since=since)
    leave_all(run)
    exact_account(run)


def test_only_the_dead_worker_is_started_again(tmp_path: Path, etcd: EtcdServer) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=100_000, **NO_COPIES) as run:
        for name in ("a", "b", "c"):
            run.start(name)
        run.wait_step(30, world_size=3)
        kept, at = pids(run, "a", "c"), run.now()
        (victim,) = run.nodes["b"].workers()
        os.kill(victim, signal.SIGKILL)
        found = recovered(run, since=at)
        after = run.follower.records[at:]
        assert pids(run, "a", "c") == kept
        assert (kinds(after, WorkerStayed), kinds(after, WorkerStarted)) == (2, 1)
        assert_kept(tiers(after), workers=3)
        assert found.lost_steps == 0
        end(run, world_size=3, since=at)


def test_the_others_go_on_without_a_lost_node_and_its_newcomer_gets_their_state(
    tmp_path: Path, etcd: EtcdServer
) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=100_000, **NO_COPIES) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(33, world_size=2)
        kept, at = pids(run, "b"), run.now()
        run.nodes["a"].kill()  # rank 0, and mostly the leader
        found = recovered(run, since=at)
        assert (found.path, found.lost_steps) == ("rejoin", 0)
        assert pids(run, "b") == kept
        assert tiers(run.follower.records[at:]) == ["process"]
        joined = run.now()
        run.start("c")
        run.wait_step(1, world_size=2, since=joined)
        assert pids(run, "b") == kept
        after = run.follower.records[joined:]
        assert tiers(after) == ["peer", "process"]
        came = {r.node: (r.event.arrived, r.event.givers) for r in after if isinstance(r.event, Restored)}
        assert came["b"] == ((), ()), "it has its own"
        (((tier, came_bytes, seconds),), givers) = came["c"]
        assert (tier, givers) == ("peer", (0,))
        assert state_bytes() < came_bytes <= state_bytes() + HEADERS_BYTES
        assert 0 < seconds < 5, "a rate, and not of the time that is waited for"
        key = ("tier", "peer")
        until(lambda: scraped(run)["c"]["elastic_restore_bytes_total", key] == came_bytes, what="it is exported")
        assert scraped(run)["c"]["elastic_restore_transfer_seconds_total", key] == pytest.approx(seconds)
        assert f"{came_bytes / 1e6:.1f} MB from rank 0 in " in run.nodes["c"].log.read_text()
        end(run, world_size=2, since=joined)


@pytest.mark.exhaustive
def test_the_sibling_of_a_killed_worker_keeps_its_process(tmp_path: Path, etcd: EtcdServer) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=100_000, options=("--nproc-per-node=2",), **NO_COPIES) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(30, world_size=4)
        before, at = run.nodes["b"].workers(), run.now()
        os.kill(before[1], signal.SIGKILL)
        recovered(run, since=at)
        after = run.nodes["b"].workers()
        assert len(set(before) & set(after)) == 1
        assert_kept(tiers(run.follower.records[at:]), workers=4)
        end(run, world_size=4, since=at)


@pytest.mark.exhaustive
def test_who_does_not_come_free_is_killed_and_forked_anew(tmp_path: Path, etcd: EtcdServer) -> None:
    wait = tmp_path / "wait"
    with cluster(
        tmp_path, etcd.endpoint, steps=100_000, ELASTIC__JOB__TARGET="tests.harness.small_job:waits_once", **NO_COPIES
    ) as run:
        run.start("a")
        run.start("b", TESTS_WAIT=str(wait))
        run.start("c")
        run.wait_step(30, world_size=3)
        kept, stuck = pids(run, "c"), pids(run, "b")
        wait.touch()
        until(lambda: not wait.exists(), what="its wait")
        at = run.now()
        (victim,) = run.nodes["a"].workers()
        os.kill(victim, signal.SIGKILL)
        found = recovered(run, since=at)
        assert found.seconds < 10, "a deadline of some steps, not of minutes"
        assert pids(run, "c") == kept
        assert pids(run, "b") != stuck
        after = run.follower.records[at:]
        assert (kinds(after, WorkerStayed), kinds(after, WorkerStarted)) == (1, 2)
        assert tiers(after) == ["peer", "peer", "process"]
        end(run, world_size=3, since=at)


@pytest.mark.exhaustive
def test_all_workers_dead_go_on_from_memory(tmp_path: Path, etcd: EtcdServer) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=100_000) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(33, world_size=2)
        at = run.now()
        for (victim,) in pids(run, "a", "b"):
            os.kill(victim, signal.SIGKILL)
        found = recovered(run, since=at)
        assert (found.path, tiers(run.follower.records[at:])) == ("refork", ["memory", "memory"])
        assert found.lost_steps <= 10
        end(run, world_size=2, since=at)


@pytest.mark.exhaustive
def test_all_leave_while_workers_wait_for_another_generation(tmp_path: Path, etcd: EtcdServer) -> None:
    """Only they have what was done since the last save. There are too few for a world: nobody could do a step more."""
    seldom = {"ELASTIC__CHECKPOINT__SAVE_INTERLEAVED_STEPS": "20"}
    with cluster(tmp_path, etcd.endpoint, steps=400, nnodes="3:4", **seldom) as run:
        for name in ("a", "b", "c"):
            run.start(name)
        run.wait_step(33, world_size=3)
        run.nodes["a"].kill()
        for name in ("b", "c"):
            log = run.nodes[name].log
            until(lambda log=log: "is over here" in log.read_text(), what="word of the end")  # type: ignore[misc]
        kept = pids(run, "b", "c")
        assert [len(each) for each in kept] == [1, 1]
        for name in ("b", "c"):
            run.nodes[name].signal(signal.SIGTERM)
        assert [run.wait_exit(name, limit_s=30) for name in ("b", "c")] == [75, 75]
        records = read_records(run.save_path / "events")
        done = max(r.event.iteration for r in records if isinstance(r.event, StepCommitted))
        saved = max(r.event.iteration for r in records if durable(r))
        assert saved == done, "its last step, long before the next save"
        at = run.now()
        for name in ("d", "e", "f"):
            run.start(name)
        run.wait_step(1, world_size=3, since=at)
        assert {r.event.iteration for r in run.follower.records[at:] if isinstance(r.event, Restored)} == {done}
        assert [run.wait_exit(name, limit_s=60) for name in ("d", "e", "f")] == [0, 0, 0]
        assert exact_account(run).steps == 400


@pytest.mark.exhaustive
@pytest.mark.parametrize("whom", ["rank 0", "any"])
def test_twenty_nodes_in_a_row(tmp_path: Path, etcd: EtcdServer, whom: str) -> None:
    """Each is killed, agent and worker, and replaced; in between the others never stop for long, and lose nothing."""
    draw, kills, lost = random.Random(3), 20, 0
    with cluster(tmp_path, etcd.endpoint, steps=1_000_000) as run:
        for name in ("n0", "n1", "n2"):
            run.start(name)
        step = run.wait_step(20, world_size=3)
        for number in range(kills):
            world = [r.event for r in run.follower.records if isinstance(r.event, WorldFormed)][-1]
            at, victim = run.now(), world.nodes[0] if whom == "rank 0" else draw.choice(world.nodes)
            run.nodes[victim].kill()
            smaller = run.wait_step(1, world_size=2, since=at, after=step.generation)
            lost += recovered(run, since=at).lost_steps
            run.start(f"n{number + 3}")
            step = run.wait_step(1, world_size=3, since=at, after=smaller.generation)
        assert lost <= kills, "at most the step in flight, each time"
        end(run, world_size=3, since=at)
