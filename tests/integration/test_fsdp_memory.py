"""Dealt out parameters under torchrun and etcd: what is lost with a worker or a node comes back from memory."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from elastic.events import CheckpointSaved, Record, Recovered, Restored, StepCommitted, read_records
from elastic.local.cluster import Cluster
from elastic.local.etcd import EtcdServer
from tests.harness.survival import cluster, exact_account

pytestmark = pytest.mark.integration

STEPS, MEMORY_STEPS = 160, 5
SAVE_STEPS = 60
"""Seldom, so that a copy in memory is newer than what is on disk."""
SETTINGS = {
    "ELASTIC__TRAINING__STRATEGY": "fsdp2",
    "ELASTIC__CHECKPOINT__SAVE_INTERLEAVED_STEPS": str(SAVE_STEPS),
    "ELASTIC__CHECKPOINT__MEMORY_EVERY_STEPS": str(MEMORY_STEPS),
}


def run_on(directory: Path, etcd: EtcdServer, *, options: tuple[str, ...] = (), **more: str) -> Cluster:
    return cluster(directory, etcd.endpoint, steps=STEPS, options=options, **(SETTINGS | more))


def recover(run: Cluster, *, since: int) -> Recovered:
    found = run.wait(lambda r: isinstance(r.event, Recovered), what="recovery", limit_s=60, since=since).event
    assert isinstance(found, Recovered)
    return found


def of_last(records: list[Record]) -> tuple[list[Restored], int, int]:
    """What the last generation went on from; the last step done before it, and the last one on disk then."""
    last = max(r.generation for r in records if isinstance(r.event, Restored))
    back = [r.event for r in records if isinstance(r.event, Restored) and r.generation == last]
    before = [r for r in records if r.generation < last]
    reached = max(r.event.iteration for r in before if isinstance(r.event, StepCommitted))
    saved = max(r.event.iteration for r in before if isinstance(r.event, CheckpointSaved) and r.event.tier == "disk")
    return back, reached, saved


def assert_from_memory(run: Cluster, world_size: int) -> None:
    assert exact_account(run).steps == STEPS
    back, reached, saved = of_last(read_records(run.save_path / "events"))
    assert [each.tier for each in back] == ["memory"] * world_size, back
    (iteration,) = {each.iteration for each in back}
    assert reached - MEMORY_STEPS <= iteration <= reached
    assert iteration > saved, "the disk had only older ones"


@pytest.mark.exhaustive
@pytest.mark.parametrize("workers", [1, 2])
def test_worker_kill(tmp_path: Path, etcd: EtcdServer, workers: int) -> None:
    with run_on(tmp_path, etcd, options=(f"--nproc-per-node={workers}",)) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(SAVE_STEPS + MEMORY_STEPS + 1, world_size=2 * workers)
        at = run.now()
        os.kill(run.nodes["b"].workers()[0], signal.SIGKILL)
        assert recover(run, since=at).lost_steps <= MEMORY_STEPS + 1
        assert [run.wait_exit(name, limit_s=120) for name in ("a", "b")] == [0, 0]
        assert_from_memory(run, 2 * workers)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("victim_rank", "workers"), [(2, 1), (0, 1), (1, 1), (1, 2)])
def test_node_kill(tmp_path: Path, etcd: EtcdServer, victim_rank: int, workers: int) -> None:
    with run_on(tmp_path, etcd, options=(f"--nproc-per-node={workers}",)) as run:
        for name in ("a", "b", "c"):
            run.start(name)
        formed = run.wait_world(3 * workers)
        run.wait_step(SAVE_STEPS + MEMORY_STEPS + 1, world_size=3 * workers)
        at = run.now()
        victim = formed.event.nodes[victim_rank]  # type: ignore[attr-defined]
        _, killed = run.nodes[victim].kill()
        assert len(killed) == workers
        run.wait_world(2 * workers, since=at)
        assert recover(run, since=at).lost_steps <= MEMORY_STEPS + 1
        survivors = [name for name in ("a", "b", "c") if name != victim]
        assert [run.wait_exit(name, limit_s=120) for name in survivors] == [0, 0]
        assert_from_memory(run, 2 * workers)


@pytest.mark.exhaustive
def test_without_peers_a_lost_node_means_the_disk(tmp_path: Path, etcd: EtcdServer) -> None:
    with run_on(tmp_path, etcd, ELASTIC__CHECKPOINT__MEMORY_PEERS="0") as run:
        for name in ("a", "b", "c"):
            run.start(name)
        run.wait_step(SAVE_STEPS + MEMORY_STEPS + 1, world_size=3)
        at = run.now()
        run.nodes["c"].kill()
        recover(run, since=at)
        assert [run.wait_exit(name, limit_s=120) for name in ("a", "b")] == [0, 0]
        back, _, saved = of_last(read_records(run.save_path / "events"))
        assert [(each.tier, each.iteration) for each in back] == [("disk", saved)] * 2


@pytest.mark.exhaustive
def test_killed_while_its_part_is_passed_on(tmp_path: Path, etcd: EtcdServer) -> None:
    """Its own copy is whole by then, and its agent still has it: that very step is gone on from."""
    passes = 20
    with run_on(tmp_path, etcd) as run:
        for name in ("a", "b"):
            run.start(name)
        run.start("c", ELASTIC_FAILPOINT=f"memory.pass=kill@{passes}")
        run.wait_world(3)
        recover(run, since=run.now())
        assert [run.wait_exit(name, limit_s=120) for name in ("a", "b", "c")] == [0, 0, 0]
        assert_from_memory(run, 3)
        back, reached, _ = of_last(read_records(run.save_path / "events"))
        assert (reached, back[0].iteration) == (passes * MEMORY_STEPS, passes * MEMORY_STEPS)
