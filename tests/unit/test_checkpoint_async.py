"""Saving beside the training: what is saved is the state at the boundary, and everything else as when one waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from elastic.checkpoint.memory import MemoryTier
from elastic.checkpoint.room import Room
from elastic.checkpoint.seams import CommitVerdict
from elastic.clock import SYSTEM_CLOCK
from elastic.errors import Fenced, UsageError
from tests.harness.arenas import PLENTY, two_arenas
from tests.harness.checkpoints import Bench, make_run, meta, same
from tests.harness.faulty_storage import Died, Fault, FaultyStorage
from tests.harness.gate import LIMIT_S, Gate, until
from tests.harness.ranks import run_ranks


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(params=["heap", "arena"])
def tier(request, tmp_path) -> Iterator[MemoryTier | None]:
    if request.param == "heap":
        yield None
        return
    made = MemoryTier(two_arenas(tmp_path), room=lambda: PLENTY)
    yield made
    made.close()


def test_the_distance_to_the_next_save_counts_from_the_one_under_way(tmp_path, gate):
    bench = Bench(tmp_path / "root")
    manager = bench.manager(storage=gate, save_mode="async")
    manager.schedule.pace(every_steps=10)
    manager.save(make_run().step(12).tracked, meta(12), wait=False)
    assert not manager.due(13)
    assert not manager.due(20)
    assert manager.due(22)


def test_training_goes_on_and_the_state_of_the_boundary_is_saved(tmp_path, gate, tier):
    bench = Bench(tmp_path / "root")
    run = make_run().step(10)
    manager = bench.manager(storage=gate, save_mode="async", tier=tier)
    assert not manager.save(run.tracked, meta(10), wait=False).saved
    assert gate.asked.wait(LIMIT_S)
    run.step(3)
    assert not manager.ready
    assert manager.advance(all_ready=False) is None
    assert bench.committer.kept is None
    gate.open.set()
    until(lambda: manager.ready)
    assert manager.advance(all_ready=True) is None
    until(lambda: manager.ready)
    result = manager.advance(all_ready=True)
    assert result is not None
    assert result.saved
    assert bench.kinds() == ["checkpoint_saved"]
    other = make_run(seed=3)
    assert bench.manager().restore(other.tracked).iteration == 10
    assert same(other, make_run().step(10))


def test_the_next_save_waits_for_the_one_before(tmp_path, gate, tier):
    bench = Bench(tmp_path / "root")
    run = make_run().step(10)
    manager = bench.manager(storage=gate, save_mode="async", tier=tier, clock=SYSTEM_CLOCK)
    manager.save(run.tracked, meta(10), wait=False)
    threading.Timer(0.05, gate.open.set).start()
    manager.save(run.step(10).tracked, meta(20), wait=False)
    assert bench.committer.kept.iteration == 10
    assert manager.settle().saved
    assert bench.committer.kept.iteration == 20
    other = make_run(seed=3)
    assert bench.manager().restore(other.tracked).iteration == 20
    assert same(other, run)


def test_or_is_left_out_and_counted(tmp_path, gate, tier):
    bench = Bench(tmp_path / "root")
    run = make_run().step(10)
    manager = bench.manager(storage=gate, save_mode="async", save_overlap="skip", tier=tier)
    manager.save(run.tracked, meta(10), wait=False)
    left_out = manager.save(run.step(10).tracked, meta(20), wait=False)
    assert not left_out.saved
    assert "iteration 10 is still being written" in left_out.reason
    gate.open.set()
    assert manager.settle().iteration == 10
    assert bench.events[-1].skipped == 1
    # At the end of a run nothing is left out.
    manager.save(run.step(10).tracked, meta(30), wait=False)
    assert manager.save(run.step(1).tracked, meta(31)).saved
    assert bench.committer.kept.iteration == 31


def test_a_save_that_fails_is_told_and_tried_again(tmp_path, tier):
    bench = Bench(tmp_path / "root")
    run = make_run().step(10)
    storage = FaultyStorage(at=1)
    manager = bench.manager(storage=storage, save_mode="async", tier=tier)
    manager.save(run.tracked, meta(10), wait=False)
    assert not manager.due(11), "while it is under way it is no failure"
    assert not manager.settle().saved
    assert storage.fired
    assert bench.kinds() == ["checkpoint_failed"]
    assert "No space" in bench.reasons("checkpoint_failed")
    assert not list(bench.root.glob(".tmp*"))
    assert manager.due(12)
    assert manager.save(run.tracked, meta(12)).saved


def test_a_state_that_cannot_be_taken_is_a_failed_save(tmp_path, tier):
    bench = Bench(tmp_path / "root")
    run = make_run()
    run.tracked["model"].register_buffer("odd", torch.eye(3).to_sparse())
    manager = bench.manager(save_mode="async", tier=tier)
    assert not manager.save(run.tracked, meta(10)).saved
    assert "only dense ones can be saved" in bench.reasons("checkpoint_failed")


def test_a_newer_generation_ends_it_at_the_boundary(tmp_path, tier):
    bench = Bench(tmp_path / "root")
    bench.committer.answer = CommitVerdict(granted=False, reason="generation 2 exists", stale=True)
    manager = bench.manager(save_mode="async", tier=tier)
    manager.save(make_run().step(10).tracked, meta(10), wait=False)
    with pytest.raises(Fenced, match="generation 2 exists"):
        manager.settle()


@pytest.mark.parametrize("at", range(9))
def test_a_death_in_the_thread(tmp_path, at):
    bench = Bench(tmp_path / "root")
    run = make_run().step(10)
    assert bench.manager().save(run.tracked, meta(10)).saved
    storage = FaultyStorage(at=at, fault=Fault.DIE)
    with pytest.raises(Died):
        bench.manager(storage=storage, save_mode="async").save(run.step(10).tracked, meta(20))
    assert storage.fired
    other = make_run(seed=3)
    assert bench.manager().restore(other.tracked).iteration == 10


def test_the_slowest_rank_counts(tmp_path):
    bench = Bench(tmp_path / "root")
    gates = [Gate(), Gate(), Gate()]
    gates[0].open.set()
    gates[2].open.set()

    def rank(group) -> bool:
        run = make_run().step(10)
        manager = bench.manager(group=group, storage=gates[group.rank], save_mode="async")
        manager.save(run.tracked, meta(10), wait=False)
        for boundary in range(10_000):
            ready = torch.tensor([float(manager.ready)])
            group.sum_(ready)
            everyone = int(ready) == group.size
            if boundary == 3:
                assert not everyone, "one rank has not written its shard yet"
                gates[1].open.set()
            if (result := manager.advance(all_ready=everyone)) is not None:
                return result.saved
            SYSTEM_CLOCK.sleep(0.001)
        raise AssertionError("it never ended")

    assert run_ranks(3, rank) == [True] * 3


def test_no_room_is_a_notice_or_an_error(tmp_path):
    places = two_arenas(tmp_path)
    bench = Bench(tmp_path / "root")

    def poor() -> MemoryTier:
        return MemoryTier(places, room=lambda: Room(available_bytes=100, cgroup_bytes=None))

    tier = poor()
    with pytest.raises(UsageError, match="memory_required: false"):
        bench.manager(tier=tier, memory_every_steps=1, memory_required=True).restore(make_run().tracked)
    tier.close()
    run = make_run().step(10)
    manager = bench.manager(tier=poor(), memory_every_steps=1, save_mode="async")
    manager.restore(make_run().tracked)
    assert "memory_every_steps: 0 switches the memory tier off" in " ".join(
        event.text for event in bench.events if event.kind == "notice"
    )
    told = bench.kinds()
    manager.snapshot(run.tracked, meta(10))
    assert bench.kinds() == told, "no copy here; other nodes may make theirs"
    assert manager.save(run.tracked, meta(10)).saved
