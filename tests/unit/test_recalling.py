"""Restoring from memory: only what lies on the committed line, by every rank, and exactly."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic.checkpoint.layout import CommitRecord, Health
from elastic.checkpoint.memory import MemoryTier, Places
from elastic.checkpoint.recalling import Offer, pick
from elastic.checkpoint.room import Room
from elastic.history import newest_manifest
from tests.harness.checkpoints import Bench, make_run, meta, same
from tests.harness.ranks import run_tensor_ranks

RECORD = CommitRecord(iteration=20, lineage="line", manifest_digest="d", generation=3, consumed_samples=160)
OFFER = Offer(lineage="line", generation=3, iteration=25, consumed_samples=200, run_digest=1, ckpt_status=Health.NORMAL)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_the_newest_on_any_rank_is_taken():
    older = replace(OFFER, iteration=23, consumed_samples=184)
    found = pick([[older], [OFFER, older], []], record=RECORD, lineage="line", newest_on_disk=20)
    assert found.offer == OFFER
    assert found.holders == (1,)
    assert "on 1 of 3 ranks" in found.reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"lineage": "other"}, "is of lineage other"),
        ({"generation": 2}, "others have gone on in generation 3"),
        ({"generation": 4}, "is of generation 4"),
        ({"iteration": 19}, "older than the committed iteration 20"),
        ({"consumed_samples": 100}, "older than the committed iteration 20"),
        ({"iteration": 21}, "older than iteration 22 on disk"),
        ({"ckpt_status": Health.ABNORMAL}, "is marked unhealthy"),
    ],
)
def test_what_must_not_be_gone_on_from(change, reason):
    found = pick([[replace(OFFER, **change)]], record=RECORD, lineage="line", newest_on_disk=22)
    assert found.offer is None
    assert reason in found.reason


def test_without_a_record_or_a_copy_there_is_nothing():
    found = pick([[OFFER]], record=None, lineage="line", newest_on_disk=20)
    assert (found.offer, found.reason) == (None, "no record says which line a copy in memory must be of")
    assert pick([[], []], record=RECORD, lineage="line", newest_on_disk=20).offer is None
    marked = replace(OFFER, ckpt_status=Health.ABNORMAL)
    assert pick([[marked]], record=RECORD, lineage="line", newest_on_disk=20, load_unhealthy=True).offer == marked


def test_where_nothing_was_ever_committed_the_newest_generation_counts():
    left = replace(OFFER, generation=2, iteration=40)
    strange = replace(OFFER, generation=9, lineage="other")
    found = pick([[left, OFFER], [strange]], record=None, lineage="line", newest_on_disk=0)
    assert found.offer == OFFER
    assert found.reason.endswith("nothing was committed yet")
    assert pick([[strange]], record=None, lineage="line", newest_on_disk=0).offer is None


def open_tier(directory: Path) -> MemoryTier:
    directory.mkdir(exist_ok=True)
    for name in "ab":
        (directory / name).touch()
    places = Places(own=(str(directory / "a"), str(directory / "b")))
    return MemoryTier(places, room=lambda: Room(available_bytes=1 << 40, cgroup_bytes=None))


def live(bench: Bench, tmp_path: Path, ranks: int, *, generation: int, to: int, save_at: int = 0, **settings: Any):
    """A generation on `ranks` nodes: restores, trains to `to` with a copy at each step; a save at `save_at`.

    What each rank restored, and its run.
    """

    def rank(group):
        tier = open_tier(tmp_path / f"node{group.rank}")
        run = make_run(seed=9)
        manager = bench.manager(group=group, generation=generation, tier=tier, memory_every_steps=1, **settings)
        restored = manager.restore(run.tracked)
        run.steps = restored.iteration
        if restored.own:
            manager.snapshot(run.tracked, meta(restored.iteration, generation=generation))
        if restored.tier == "none":
            run = make_run()
        while run.steps < to:
            run.step()
            if run.steps == save_at:
                assert manager.save(run.tracked, meta(run.steps, generation=generation)).saved
            else:
                manager.snapshot(run.tracked, meta(run.steps, generation=generation))
        tier.close()
        return restored, run

    return run_tensor_ranks(ranks, rank)


def test_before_the_first_save_too(tmp_path):
    bench = Bench(tmp_path / "root")
    live(bench, tmp_path, 2, generation=1, to=7)
    for restored, run in live(bench, tmp_path, 2, generation=2, to=20, save_at=10):
        assert (restored.iteration, restored.tier) == (7, "memory")
        assert same(run, make_run().step(20))
    ((restored, _), _) = live(bench, tmp_path, 2, generation=3, to=21)
    assert (restored.iteration, restored.tier) == (20, "memory")
    assert newest_manifest(str(bench.root)).iteration == 10


def test_workers_go_on_from_the_last_copy(tmp_path):
    bench = Bench(tmp_path / "root")
    live(bench, tmp_path, 2, generation=1, to=14, save_at=10)
    found = live(bench, tmp_path, 2, generation=2, to=20)
    for restored, run in found:
        assert (restored.iteration, restored.consumed_samples, restored.tier) == (14, 112, "memory")
        assert "committed was iteration 10" in restored.reason
        assert same(run, make_run().step(20))
    record = bench.committer.record()
    assert (record.iteration, record.generation) == (10, 2)
    # And again, without a save in between.
    ((restored, run), _) = live(bench, tmp_path, 2, generation=3, to=21)
    assert (restored.iteration, restored.tier) == (20, "memory")
    assert same(run, make_run().step(21))


def test_a_newcomer_gets_it_from_a_survivor(tmp_path):
    bench = Bench(tmp_path / "root")
    live(bench, tmp_path, 2, generation=1, to=14, save_at=10)
    for name in "ab":
        (tmp_path / "node0" / name).unlink()
    found = live(bench, tmp_path, 3, generation=2, to=16)
    assert [restored.tier for restored, _ in found] == ["memory"] * 3
    assert [restored.iteration for restored, _ in found] == [14] * 3
    assert all(same(run, make_run().step(16)) for _, run in found)


def test_all_copies_gone_means_the_disk(tmp_path):
    bench = Bench(tmp_path / "root")
    live(bench, tmp_path, 2, generation=1, to=14, save_at=10)
    for path in tmp_path.glob("node*/*"):
        path.unlink()
    for restored, run in live(bench, tmp_path, 2, generation=2, to=12):
        assert (restored.iteration, restored.tier) == (10, "disk")
        assert same(run, make_run().step(12))


def test_a_copy_of_a_line_that_was_left_is_not_taken(tmp_path):
    bench = Bench(tmp_path / "root")
    live(bench, tmp_path, 2, generation=1, to=18, save_at=10)
    # Without node 0 and without a copy the others went back to the disk; then node 0 is there again.
    (tmp_path / "node0").rename(tmp_path / "away")
    for path in tmp_path.glob("node1/*"):
        path.unlink()
    live(bench, tmp_path, 1, generation=2, to=12)
    for path in tmp_path.glob("node0/*"):
        path.unlink()
    for name in "ab":
        (tmp_path / "away" / name).rename(tmp_path / "node0" / name)
    bench.events.clear()
    ((restored, _),) = live(bench, tmp_path, 1, generation=3, to=11)
    assert (restored.iteration, restored.tier) == (10, "disk")
    told = [event.text for event in bench.events if event.kind == "notice"]
    assert any("others have gone on in generation 2" in text for text in told)


def test_a_save_that_was_lost_is_made_up_for(tmp_path):
    bench = Bench(tmp_path / "root")
    live(bench, tmp_path, 1, generation=1, to=25, save_at=10)
    tier = open_tier(tmp_path / "node0")
    run = make_run(seed=4)
    manager = bench.manager(generation=2, tier=tier, memory_every_steps=1)
    assert manager.restore(run.tracked).iteration == 25
    assert manager.schedule.behind(25), "the save of iteration 20 never came"
    assert not manager.schedule.behind(19)
    assert manager.save(run.tracked, meta(25, generation=2)).saved
    assert not manager.schedule.behind(29)
    assert bench.committer.kept.iteration == 25
    # The chain of what was committed goes on, so that a fallback finds its way.
    chain = newest_manifest(bench.root).ancestors
    assert len(chain) == 1
    tier.close()


def test_weights_alone_are_not_kept(tmp_path):
    bench = Bench(tmp_path / "root")
    tier = open_tier(tmp_path / "node0")
    manager = bench.manager(generation=1, tier=tier, memory_every_steps=1, no_save_optim=True, no_load_optim=True)
    assert not manager.snapshot_due(1)
    assert manager.save(make_run().step(10).tracked, meta(10)).saved
    assert [each.whole for each in tier.held()] == [False]
    tier.close()


def test_going_back_to_the_last_save_leaves_no_newer_copy(tmp_path):
    bench = Bench(tmp_path / "root")
    live(bench, tmp_path, 1, generation=1, to=14, save_at=10)
    tier = open_tier(tmp_path / "node0")
    assert [each.manifest.iteration for each in tier.held()] == [14, 13]
    run = make_run(seed=4)
    restored = bench.manager(generation=1, tier=tier, memory_every_steps=1).restore(run.tracked, recall=False)
    assert (restored.iteration, restored.tier) == (10, "disk")
    assert tier.held() == []
    tier.close()


def test_a_state_that_does_not_fit_is_told_like_one_on_disk(tmp_path):
    bench = Bench(tmp_path / "root")
    live(bench, tmp_path, 1, generation=1, to=14, save_at=10)
    run = make_run()
    del run.tracked["schedule"]
    tier = open_tier(tmp_path / "node0")
    manager = bench.manager(generation=2, tier=tier, memory_every_steps=1)
    with pytest.raises(Exception, match="tracked object schedule"):
        manager.restore(run.tracked)
    tier.close()


def test_what_was_restored_is_not_what_the_next_copies_write_over(tmp_path):
    bench = Bench(tmp_path / "root")
    live(bench, tmp_path, 1, generation=1, to=14, save_at=10)
    tier = open_tier(tmp_path / "node0")
    run = make_run(seed=4)
    manager = bench.manager(generation=2, tier=tier, memory_every_steps=1)
    run.steps = manager.restore(run.tracked).iteration
    other = make_run().step(3)
    for iteration in (15, 16, 17):
        manager.snapshot(other.tracked, meta(iteration, generation=2))
    assert same(run, make_run().step(14))
    tier.close()


def test_a_roll_back_passes_memory_by_and_nobody_goes_on_from_what_it_gave_up(tmp_path):
    bench = Bench(tmp_path / "root")

    def rank(group):
        tier = open_tier(tmp_path / f"node{group.rank}")
        run = make_run()
        manager = bench.manager(group=group, generation=1, tier=tier, memory_every_steps=1)
        manager.restore(run.tracked)
        while run.steps < 14:
            run.step()
            if run.steps == 10:
                assert manager.save(run.tracked, meta(10, generation=1)).saved
            else:
                manager.snapshot(run.tracked, meta(run.steps, generation=1))
        newest = manager.restore(run.tracked)
        durable = manager.restore(run.tracked, recall=False)
        # Step 15, of samples 112 to 120, was no good: all samples since the save are passed over.
        assert manager.save(run.tracked, meta(11, generation=1, consumed_samples=120)).saved
        tier.close()
        return newest, durable, run

    for newest, durable, run in run_tensor_ranks(2, rank):
        assert (newest.iteration, newest.tier) == (14, "memory")
        assert (durable.iteration, durable.tier) == (10, "disk")
        assert same(run, make_run().step(10))
    for restored, _ in live(bench, tmp_path, 2, generation=2, to=11):
        assert (restored.iteration, restored.consumed_samples) == (11, 120)


def test_a_copy_in_memory_is_enough_where_others_may_hold_what_was_committed(tmp_path):
    bench = Bench(tmp_path / "root")
    live(bench, tmp_path, 2, generation=1, to=6, save_at=5)
    live(bench, tmp_path, 2, generation=2, to=14, save_at=10)
    shutil.rmtree(bench.directory(10))
    ((restored, run), _) = live(bench, tmp_path, 2, generation=3, to=15, others_may_hold=True)
    assert (restored.iteration, restored.tier) == (14, "memory")
    assert same(run, make_run().step(15))


def test_and_where_all_files_are_gone(tmp_path):
    """A copy in memory is newer than what was committed, and the next save makes it durable again."""
    bench = Bench(tmp_path / "root")
    live(bench, tmp_path, 2, generation=1, to=14, save_at=10)
    shutil.rmtree(bench.directory(10))
    ((restored, run), _) = live(bench, tmp_path, 2, generation=2, to=21, save_at=20)
    assert (restored.iteration, restored.tier) == (14, "memory")
    assert same(run, make_run().step(21))
    assert newest_manifest(str(bench.root)).iteration == bench.committer.record().iteration == 20
    for path in tmp_path.glob("node*/*"):
        path.unlink()
    ((restored, _), _) = live(bench, tmp_path, 2, generation=3, to=21)
    assert (restored.iteration, restored.tier) == (20, "disk")
