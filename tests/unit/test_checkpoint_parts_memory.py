"""Parts and copies in memory: a save goes through the arenas; for a restart nothing is kept that others would lack."""

from __future__ import annotations

import torch

from tests.harness.checkpoints import Bench, meta
from tests.harness.ranks import run_tensor_ranks
from tests.unit.test_checkpoint_parts import check, dealt, make, restore
from tests.unit.test_recalling import open_tier


def test_parts_are_saved_from_the_arenas_and_restored_from_disk(tmp_path):
    torch.set_num_threads(1)
    bench, expected = Bench(tmp_path / "root"), make(0, steps=2)
    parts = dealt(2, seed=0, steps=2)

    def save(group):
        tier = open_tier(tmp_path / f"node{group.rank}")
        manager = bench.manager(group=group, generation=1, tier=tier, memory_every_steps=1, save_mode="async")
        manager.restore(parts[group.rank])
        saved = manager.save(parts[group.rank], meta(2))
        with torch.no_grad():
            for each in parts[group.rank]["model"].parameters():
                getattr(each, "to_local", lambda each=each: each)().add_(1)
        manager.snapshot(parts[group.rank], meta(3))
        whole = [held.whole for held in tier.held()]
        tier.close()
        return saved.saved, any(whole)

    assert run_tensor_ranks(2, save) == [(True, False)] * 2
    others = dealt(3, seed=9)

    def again(group):
        tier = open_tier(tmp_path / f"node{group.rank}")
        manager = bench.manager(group=group, generation=2, tier=tier, memory_every_steps=1)
        restored = manager.restore(others[group.rank])
        tier.close()
        return restored.tier, restored.iteration

    assert run_tensor_ranks(3, again) == [("disk", 2)] * 3
    for rank, other in enumerate(others):
        check(other, expected, rank, 3, 0)


def test_a_copy_of_replicas_is_taken_by_ranks_that_hold_parts(tmp_path):
    torch.set_num_threads(1)
    bench, alone = Bench(tmp_path / "root"), make(0, steps=1)
    tier = open_tier(tmp_path / "node0")
    manager = bench.manager(generation=1, tier=tier, memory_every_steps=1)
    manager.restore(alone)
    assert manager.save(alone, meta(1)).saved
    with torch.no_grad():
        for each in alone["model"].parameters():
            each.add_(1)
    manager.snapshot(alone, meta(2))
    tier.close()
    others = dealt(2, seed=9)

    def again(group):
        kept = open_tier(tmp_path / f"node{group.rank}")
        found = bench.manager(group=group, generation=2, tier=kept, memory_every_steps=1).restore(others[group.rank])
        kept.close()
        return found.tier, found.iteration

    assert run_tensor_ranks(2, again) == [("memory", 2)] * 2
    for rank, other in enumerate(others):
        check(other, alone, rank, 2, 0)
    assert {each.iteration for each in restore(bench, [make(5)])} == {1}, "on disk is what was saved"
