"""Parts and copies in memory: every rank keeps its own, and from all of them any other world goes on."""

from __future__ import annotations

import pytest
import torch

from elastic.checkpoint.memory import MemoryTier, Places
from elastic.checkpoint.room import Room
from tests.harness.checkpoints import Bench, meta
from tests.harness.ranks import run_tensor_ranks
from tests.unit.test_checkpoint_parts import bits, check, dealt, make, restore
from tests.unit.test_recalling import open_tier


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def grow(tracked, by=1):
    """Another state: every element of the model is larger."""
    with torch.no_grad():
        for each in [*tracked["model"].parameters()] * by:
            getattr(each, "to_local", lambda each=each: each)().add_(1)
    return tracked


def train(bench, tmp_path, parts, *, to, generation=1, save_at=2, skips=(), **settings):
    """A world that restores, saves at one step, copies at every step after it; by rank what its node holds then."""

    def rank(group):
        own = parts[group.rank]
        tier = open_tier(tmp_path / f"node{group.rank}")
        manager = bench.manager(group=group, generation=generation, tier=tier, memory_every_steps=1, **settings)
        manager.restore(own)
        assert manager.save(own, meta(save_at, generation=generation)).saved
        for iteration in range(save_at + 1, to + 1):
            grow(own)
            if (group.rank, iteration) not in skips:
                manager.snapshot(own, meta(iteration, generation=generation))
        held = [(each.manifest.iteration, each.rank, each.pieces is not None) for each in tier.held()]
        tier.close()
        return held

    return run_tensor_ranks(len(parts), rank)


def again(bench, tmp_path, ranks, *, generation=2, nodes=None, **settings):
    """A world of fresh processes restores: what each rank tells, and what it has."""
    others = dealt(ranks, seed=9) if ranks > 1 else [make(9)]

    def rank(group):
        tier = open_tier(tmp_path / (nodes[group.rank] if nodes else f"node{group.rank}"))
        manager = bench.manager(group=group, generation=generation, tier=tier, memory_every_steps=1, **settings)
        restored = manager.restore(others[group.rank])
        tier.close()
        return restored

    return run_tensor_ranks(ranks, rank), others


@pytest.mark.parametrize(("there", "here"), [(2, 2), (2, 3), (3, 8), (4, 4), (2, 5)])
def test_any_world_goes_on_from_the_parts_of_another(tmp_path, there, here):
    bench = Bench(tmp_path / "root")
    held = train(bench, tmp_path, dealt(there, seed=0, steps=2), to=4)
    assert held == [[(4, rank, True), (3, rank, True)] for rank in range(there)]
    found, others = again(bench, tmp_path, here)
    assert [(each.tier, each.iteration, each.consumed_samples) for each in found] == [("memory", 4, 32)] * here
    assert f"all {there} parts are there; committed was iteration 2" in found[0].reason
    expected = grow(make(0, steps=2), by=2)
    for rank, other in enumerate(others):
        check(other, expected, rank, here, 0)
    assert bench.committer.record().iteration == 2
    assert bench.committer.record().generation == 2
    # Who goes on from memory keeps its own parts, from which the next generation goes on.
    train_on = train(bench, tmp_path, others, to=6, generation=3, save_at=5)
    assert {iteration for each in train_on for iteration, *_ in each} == {5, 6}


def test_parts_of_neighbours_and_a_world_of_one(tmp_path):
    bench = Bench(tmp_path / "root")
    train(bench, tmp_path, dealt(2, seed=0, steps=2), to=3)
    own, others = ((str(tmp_path / node / "a"), str(tmp_path / node / "b")) for node in ("node0", "node1"))
    tier = MemoryTier(Places(own=own, others=others), room=lambda: Room(available_bytes=1 << 40, cgroup_bytes=None))
    alone = make(9)
    restored = bench.manager(generation=2, tier=tier, memory_every_steps=1).restore(alone)
    assert (restored.tier, restored.iteration) == ("memory", 3)
    assert bits(alone) == bits(grow(make(0, steps=2)))
    tier.close()


def test_where_a_part_is_gone_all_go_back_to_the_disk(tmp_path):
    bench = Bench(tmp_path / "root")
    train(bench, tmp_path, dealt(3, seed=0, steps=2), to=4)
    for path in (tmp_path / "node1").iterdir():
        path.unlink()
    found, others = again(bench, tmp_path, 3)
    assert [(each.tier, each.iteration) for each in found] == [("disk", 2)] * 3
    notices = [event.text for event in bench.events if event.kind == "notice"]
    assert any("of iteration 4 the parts of ranks [1] of 3 are gone" in text for text in notices)
    for rank, other in enumerate(others):
        check(other, make(0, steps=2), rank, 3, 0)


def test_the_newest_step_of_which_all_parts_are_there(tmp_path):
    """A rank was killed before it had copied the last step."""
    bench = Bench(tmp_path / "root")
    train(bench, tmp_path, dealt(3, seed=0, steps=2), to=5, skips={(2, 5)})
    found, others = again(bench, tmp_path, 3)
    assert [(each.tier, each.iteration) for each in found] == [("memory", 4)] * 3
    for rank, other in enumerate(others):
        check(other, grow(make(0, steps=2), by=2), rank, 3, 0)
    # What was newer is of a line that was left.
    for node in ("node0", "node1", "node2"):
        assert {each.manifest.iteration for each in open_tier(tmp_path / node).held()} <= {3, 4}


def test_parts_of_a_save_are_a_copy_too(tmp_path):
    bench = Bench(tmp_path / "root")
    train(bench, tmp_path, dealt(2, seed=0, steps=2), to=2)
    found, _ = again(bench, tmp_path, 2)
    assert [(each.tier, each.iteration) for each in found] == [("memory", 2)] * 2


@pytest.mark.parametrize("what", ["image", "pieces"])
def test_damaged_parts_are_not_gone_on_from(tmp_path, what, monkeypatch):
    bench = Bench(tmp_path / "root")
    train(bench, tmp_path, dealt(2, seed=0, steps=2), to=3)
    if what == "image":
        for path in (tmp_path / "node1").iterdir():
            path.write_bytes(path.read_bytes().replace(b'"dtype"', b'"dxype"'))
    if what == "pieces":
        monkeypatch.setattr("elastic.checkpoint.regathering.pieces_from", lambda plain: ())
    found, others = again(bench, tmp_path, 2)
    assert [(each.tier, each.iteration) for each in found] == [("disk", 2)] * 2
    assert "checkpoint_rejected" in bench.kinds()
    for rank, other in enumerate(others):
        check(other, make(0, steps=2), rank, 2, 0)


def test_while_a_save_is_written_copies_go_into_the_other_arena(tmp_path):
    """So every rank's arenas hold the same steps, however long its disk takes."""
    bench, parts = Bench(tmp_path / "root"), dealt(2, seed=0, steps=2)

    def rank(group):
        own, tier, seen = parts[group.rank], open_tier(tmp_path / f"node{group.rank}"), []
        manager = bench.manager(group=group, generation=1, tier=tier, memory_every_steps=1, save_mode="async")
        manager.restore(own)
        manager.save(own, meta(2), wait=False)
        for iteration in (3, 4, 5):
            if group.rank == 0:
                while not manager.ready:
                    pass  # its own files are written, but not known to be on all ranks
            manager.advance(all_ready=False)
            manager.snapshot(own, meta(iteration))
            seen.append(sorted(each.manifest.iteration for each in tier.held()))
        assert manager.settle().saved
        for iteration in (6, 7):
            manager.snapshot(own, meta(iteration))
            seen.append(sorted(each.manifest.iteration for each in tier.held()))
        tier.close()
        return seen

    assert run_tensor_ranks(2, rank) == [[[2, 3], [2, 4], [2, 5], [5, 6], [6, 7]]] * 2


def test_a_copy_of_replicas_is_taken_by_ranks_that_hold_parts(tmp_path):
    bench, alone = Bench(tmp_path / "root"), make(0, steps=1)
    tier = open_tier(tmp_path / "node0")
    manager = bench.manager(generation=1, tier=tier, memory_every_steps=1)
    manager.restore(alone)
    assert manager.save(alone, meta(1)).saved
    manager.snapshot(grow(alone), meta(2))
    tier.close()
    found, others = again(bench, tmp_path, 2)
    assert [(each.tier, each.iteration) for each in found] == [("memory", 2)] * 2
    for rank, other in enumerate(others):
        check(other, alone, rank, 2, 0)
    assert {each.iteration for each in restore(bench, [make(5)])} == {1}, "on disk is what was saved"
