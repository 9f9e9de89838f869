"""All ranks of a generation come to the state that some have kept: exactly, by the nearest way, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from elastic.checkpoint.memory import MemoryTier, Places
from elastic.checkpoint.room import Room
from elastic.checkpoint.root import claim
from elastic.checkpoint.seams import AloneGroup
from elastic.errors import PeerLost
from tests.harness.checkpoints import Bench, make_run, meta, same
from tests.harness.ranks import TensorGroup, run_tensor_ranks


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def rejoin(bench: Bench, stands: list[int | None], *, generation: int = 2, group=lambda group: group, spoil=None):
    """Ranks that stand at these steps meet. What each found, and its run after it."""

    def rank(own: TensorGroup):
        at = stands[own.rank]
        run = make_run(seed=own.rank + 5) if at is None else make_run().step(at)
        if spoil is not None:
            spoil(own.rank, run)
        manager = bench.manager(group=group(own), generation=generation)
        found = manager.rejoin(run.tracked, None if at is None else meta(at, generation=generation - 1))
        run.steps = -1 if found is None else found.iteration
        return found, run, manager

    return run_tensor_ranks(len(stands), rank)


def committed(bench: Bench, *, at: int) -> None:
    run, manager = make_run().step(at), bench.manager(generation=1)
    assert manager.save(run.tracked, meta(at, generation=1)).saved


def test_all_come_to_the_newest_state(tmp_path):
    bench = Bench(tmp_path / "root")
    committed(bench, at=10)
    found = rejoin(bench, [None, 14, 13, 14])
    assert [restored.tier for restored, _, _ in found] == ["peer", "process", "peer", "process"]
    for restored, run, manager in found:
        assert (restored.iteration, restored.consumed_samples, restored.own) == (14, 112, True)
        assert same(run, make_run().step(14))
        assert same(run.step(3), make_run().step(17)), "what follows is bit equal, too"
        assert manager.intact
    record = bench.committer.record()
    assert (record.iteration, record.generation) == (10, 2), "no older generation's save counts from here on"


def test_who_leads_may_be_new(tmp_path):
    bench = Bench(tmp_path / "root")
    found = rejoin(bench, [None, 3])
    assert [restored.iteration for restored, _, _ in found] == [3, 3]
    assert bench.committer.record() is None


def test_nobody_stands_and_others_have_gone_on(tmp_path):
    bench = Bench(tmp_path / "root")
    assert [each[0] for each in rejoin(bench, [None, None])] == [None, None]
    committed(bench, at=10)
    later = make_run().step(20)
    assert bench.manager(generation=4).save(later.tracked, meta(20, generation=4)).saved
    found = rejoin(bench, [12, None], generation=3)
    assert [each[0] for each in found] == [None, None]
    assert any("others went on in generation 4" in e.text for e in bench.events if e.kind == "notice")


def test_a_replica_with_other_bits_is_told_and_mended(tmp_path):
    bench = Bench(tmp_path / "root")

    def spoil(rank, run):
        if rank == 2:
            with torch.no_grad():
                run.tracked["model"].body.bias[0] += 1e-3

    found = rejoin(bench, [6, 6, 6], spoil=spoil)
    assert [restored.tier for restored, _, _ in found] == ["process", "process", "peer"]
    assert all(same(run, make_run().step(6)) for _, run, _ in found)
    (told,) = [event for event in bench.events if event.kind == "replicas_differed"]
    assert told.ranks == (2,)


class Garbling(TensorGroup):
    """A line on which a byte of the largest piece turns over."""

    garbled = 0

    def receive_(self, tensor, *, source):
        super().receive_(tensor, source=source)
        if tensor.dtype == torch.uint8 and tensor.numel() > 1000 and not Garbling.garbled:
            self.notes = getattr(self, "notes", 0) + 1
            if self.notes == 2:  # after the note: a shard
                tensor[len(tensor) // 2] ^= 1
                Garbling.garbled += 1


def garbling(own: TensorGroup) -> TensorGroup:
    return Garbling(own.rank, own._board)


def test_what_arrives_damaged_is_not_used_by_anybody(tmp_path):
    bench, Garbling.garbled = Bench(tmp_path / "root"), 0
    found = rejoin(bench, [8, None], group=garbling)
    assert Garbling.garbled == 1
    assert [each[0] for each in found] == [None, None]
    (_, kept, manager), (_, new, _) = found
    assert manager.intact
    assert same(kept, make_run().step(8)), "who had it still has it"
    assert same(new, make_run(seed=6)), "nothing was put in"
    assert any("does not have the checksum" in e.text for e in bench.events if e.kind == "notice")


def test_a_copy_of_just_that_step_in_the_nodes_memory_is_nearer_than_a_peer(tmp_path):
    bench = Bench(tmp_path / "root")
    paths = tuple(str(tmp_path / name) for name in "ab")
    for path in paths:
        Path(path).touch()

    def tier():
        return MemoryTier(Places(own=paths), room=lambda: Room(available_bytes=1 << 40, cgroup_bytes=None))

    lost = bench.manager(generation=1, tier=tier(), memory_every_steps=1)
    lost.snapshot(make_run().step(9).tracked, meta(9, generation=1))
    lost.close()

    def rank(own: TensorGroup):
        run = make_run(seed=3) if own.rank == 1 else make_run().step(9)
        manager = bench.manager(group=own, generation=2, tier=tier() if own.rank == 1 else None, memory_every_steps=1)
        found = manager.rejoin(run.tracked, None if own.rank == 1 else meta(9, generation=1))
        manager.close()
        return found, run

    found = run_tensor_ranks(2, rank)
    assert [restored.tier for restored, _ in found] == ["process", "memory"]
    assert all(same(run, make_run().step(9)) for _, run in found)


def test_copies_in_memory_go_on_after_a_peer_was_lost_while_a_save_began(tmp_path):
    """Else the arena that the save was to be written from would be taken for good."""
    bench = Bench(tmp_path / "root")
    paths = tuple(str(tmp_path / name) for name in "ab")
    for path in paths:
        Path(path).touch()
    tier = MemoryTier(Places(own=paths), room=lambda: Room(available_bytes=1 << 40, cgroup_bytes=None))
    run, lost = make_run().step(3), []

    class Broken(AloneGroup):
        def broadcast(self, value):
            lost.append(value)
            raise PeerLost("a peer went away")

    manager = bench.manager(group=Broken(), generation=1, tier=tier, memory_every_steps=1)
    with pytest.raises(PeerLost):
        manager.save(run.tracked, meta(3, generation=1))
    assert lost
    identity = claim(str(bench.root), job_id="job")
    manager.serve(identity, group=AloneGroup(), committer=bench.committer, generation=2)
    for at in (4, 5, 6):
        run.step()
        manager.snapshot(run.tracked, meta(at, generation=2))
        assert max(held.manifest.iteration for held in tier.held()) == at
    manager.close()
