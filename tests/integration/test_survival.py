"""The whole product under faults: real etcd, real torchrun agents started with the literal command, real kills."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from elastic.events import (
    Cause,
    CheckpointSaved,
    Record,
    Recovered,
    Rescaled,
    Restored,
    RunFinished,
    StepCommitted,
    WorkerLost,
    read_records,
)
from elastic.local.etcd import EtcdServer
from tests.harness.survival import cluster, durable, exact_account, lineage_losses, restored_steps, run_alone

pytestmark = pytest.mark.integration

STEPS = 700
MEMORY_STEPS = 10
"""From one copy in memory to the next: the default."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The losses of the run that nothing happens to."""
    return lineage_losses(run_alone(tmp_path_factory.mktemp("alone"), steps=STEPS))


def assert_same_losses(run: dict[int, float], undisturbed: dict[int, float], *, first: int, count: int = 50) -> None:
    """fp32 and another order of adding up: equal to 1e-5 for a while after a resume."""
    for step in range(first, first + count):
        assert run[step] == pytest.approx(undisturbed[step], rel=1e-5), f"step {step}"


def assert_from_memory(records: list[Record]) -> None:
    """After the fault every rank went on from the newest copy that any of them still had."""
    last = max(r.generation for r in records if isinstance(r.event, Restored))
    back = [r.event for r in records if isinstance(r.event, Restored) and r.generation == last]
    assert {each.tier for each in back} == {"memory"}, back
    copies = [r.event for r in records if isinstance(r.event, CheckpointSaved) and r.generation == last - 1]
    (iteration,) = {each.iteration for each in back}
    assert iteration >= max(each.iteration for each in copies)  # rank 0 may have died before it could tell of the last
    reached = max(r.event.iteration for r in records if isinstance(r.event, StepCommitted) and r.generation == last - 1)
    assert reached - MEMORY_STEPS <= iteration <= reached


def assert_kept(records: list[Record]) -> None:
    """After the fault every rank went on from the last step that any of them had done."""
    last = max(r.generation for r in records if isinstance(r.event, Restored))
    back = [r.event for r in records if isinstance(r.event, Restored) and r.generation == last]
    assert "process" in {each.tier for each in back} <= {"process", "peer", "memory"}
    (iteration,) = {each.iteration for each in back}
    done = [r.event.iteration for r in records if isinstance(r.event, StepCommitted) and r.generation == last - 1]
    assert iteration in (max(done), max(done) + 1), "the one that was ahead may have died before it could say so"


def assert_same_bits(records: list[Record]) -> None:
    """Steps done again at the same world size have the very losses that they had before the fault."""
    losses: dict[tuple[int, int], set[float]] = {}
    for record in records:
        if isinstance(record.event, StepCommitted):
            losses.setdefault((record.event.iteration, record.event.world_size), set()).add(record.event.loss)
    assert {key: found for key, found in losses.items() if len(found) > 1} == {}


@pytest.mark.exhaustive
@pytest.mark.parametrize("rejoin", ["true", "false"])
def test_worker_kill(tmp_path: Path, etcd: EtcdServer, undisturbed: dict[int, float], rejoin: str) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=STEPS, ELASTIC__LAUNCH__REJOIN=rejoin) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(67, world_size=2)  # some steps beyond a copy
        before = run.now()
        (victim,) = run.nodes["b"].workers()
        os.kill(victim, signal.SIGKILL)
        lost = run.wait(
            lambda r: isinstance(r.event, WorkerLost) and r.event.pid == victim, what="the kill", limit_s=10
        )
        assert isinstance(lost.event, WorkerLost)
        assert "SIGKILL" in lost.event.reason
        recovered = run.wait(lambda r: isinstance(r.event, Recovered), what="recovery", limit_s=60, since=before)
        assert isinstance(recovered.event, Recovered)
        assert recovered.event.lost_steps <= (0 if rejoin == "true" else MEMORY_STEPS + 1)
        assert [run.wait_exit(name) for name in ("a", "b")] == [0, 0]
        assert exact_account(run).steps == STEPS
        records = read_records(run.save_path / "events")
        (assert_kept if rejoin == "true" else assert_from_memory)(records)
        assert_same_bits(records)
        assert_same_losses(lineage_losses(records), undisturbed, first=max(restored_steps(records).values()) + 1)


@pytest.mark.exhaustive
@pytest.mark.parametrize("rejoin", ["true", "false"])
@pytest.mark.parametrize("victim_rank", [0, 2])
def test_node_kill(
    tmp_path: Path, etcd: EtcdServer, undisturbed: dict[int, float], victim_rank: int, rejoin: str
) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=STEPS, ELASTIC__LAUNCH__REJOIN=rejoin) as run:
        for name in ("a", "b", "c"):
            run.start(name)
        formed = run.wait_world(3)
        run.wait_step(60, world_size=3)
        before = run.now()
        victim = formed.event.nodes[victim_rank]  # type: ignore[attr-defined]
        _, workers = run.nodes[victim].kill()
        assert len(workers) == 1
        run.wait_world(2, since=before)
        run.wait(lambda r: isinstance(r.event, Recovered), what="recovery", limit_s=60, since=before)
        survivors = [name for name in ("a", "b", "c") if name != victim]
        assert [run.wait_exit(name) for name in survivors] == [0, 0]
        assert exact_account(run).steps == STEPS
        records = read_records(run.save_path / "events")
        (assert_kept if rejoin == "true" else assert_from_memory)(records)
        assert_same_losses(lineage_losses(records), undisturbed, first=max(restored_steps(records).values()) + 1)


def test_three_two_three_one(tmp_path: Path, etcd: EtcdServer) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=1500) as run:
        for name in ("a", "b", "c"):
            run.start(name)
        run.wait_step(30, world_size=3)
        at = run.now()
        run.nodes["c"].kill()
        run.wait_step(1, world_size=2, since=at)
        at = run.now()
        run.start("d")
        joined = run.wait_step(1, world_size=3, since=at)
        planned = run.wait(
            lambda r: isinstance(r.event, Recovered) and r.event.cause is Cause.NODE_JOINED,
            what="the recovery from a join",
            limit_s=10,
            since=at,
        )
        assert planned.event.lost_steps == 0, "a joining node must not cost a step"  # type: ignore[attr-defined]
        at = run.now()
        for name in ("b", "d"):
            run.nodes[name].kill()
        alone = run.wait_step(1, world_size=1, since=at)
        assert alone.event.iteration > joined.event.iteration - 30  # type: ignore[attr-defined]
        assert run.wait_exit("a", limit_s=120) == 0
        exact_account(run)
        rescales = [r.event.direction for r in read_records(run.save_path / "events") if isinstance(r.event, Rescaled)]
        assert rescales[:2] == ["down", "up"]
        assert "down" in rescales[2:]


@pytest.mark.exhaustive
def test_two_nodes_of_two_workers(tmp_path: Path, etcd: EtcdServer) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=400, options=("--nproc-per-node=2",)) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(30, world_size=4)
        at = run.now()
        workers = run.nodes["b"].workers()
        assert len(workers) == 2
        os.kill(workers[0], signal.SIGKILL)
        run.wait(lambda r: isinstance(r.event, Recovered), what="recovery", limit_s=60, since=at)
        assert [run.wait_exit(name, limit_s=120) for name in ("a", "b")] == [0, 0]
        assert exact_account(run).steps == 400


def test_stop_and_resume_at_another_world_and_batch(tmp_path: Path, etcd: EtcdServer) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=4000) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(40, world_size=2)
        for name in ("a", "b"):
            run.nodes[name].signal(signal.SIGTERM)
        assert [run.wait_exit(name) for name in ("a", "b")] == [75, 75]
        saved = [r.event for r in read_records(run.save_path / "events") if durable(r)]
        stopped_at = saved[-1]
    doubled = {"ELASTIC__TRAINING__GLOBAL_BATCH_SIZE": "44"}
    steps = stopped_at.consumed_samples // 44 + 60
    with cluster(tmp_path, etcd.endpoint, steps=steps, **doubled) as run:
        run.start("c")
        assert run.wait_exit("c") == 0
        records = read_records(run.save_path / "events")
        assert exact_account(run).samples == steps * 44
        assert max(restored_steps(records).values()) == stopped_at.iteration, "nothing of a planned stop is lost"
        finished = [r.event for r in records if isinstance(r.event, RunFinished)]
        assert finished[-1].consumed_samples == steps * 44
        # A finished run says so and exits 0.
        before = run.now()
        run.start("e")
        assert run.wait_exit("e") == 0
        run.wait(lambda r: isinstance(r.event, RunFinished), what="finished again", limit_s=5, since=before)
