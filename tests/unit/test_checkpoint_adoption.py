"""Adoption: what a generation saved completely and could not commit is finished by the next one, and by no other."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from elastic.checkpoint.seams import CommitVerdict
from elastic.errors import Fenced
from tests.harness.checkpoints import Bench, NoRecord, RecordCommitter, make_run, meta, same
from tests.harness.faulty_storage import Died, Fault, FaultyStorage
from tests.harness.ranks import run_ranks

# Operations of a first save of a start: make_dir, model, opt, common, metadata, manifest, sync_dir, publish, sync_dir.
SYNC_TEMP, PUBLISH, SYNC_ROOT = 6, 7, 8
COMPLETE = [
    (SYNC_TEMP, Fault.DIE),
    (PUBLISH, Fault.DIE),
    (PUBLISH, Fault.DIE_AFTER),
    (SYNC_ROOT, Fault.DIE),
    (SYNC_ROOT, Fault.DIE_AFTER),
]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


class Dying(FaultyStorage):
    """Begins to count at the save: what a restore does before it is not meant."""

    def armed(self, at, fault):
        self._at, self._fault = len(self.calls) + at, fault


def die_in_save(bench, *, generation, steps=1, at=SYNC_ROOT, fault=Fault.DIE_AFTER):
    """A generation that restores, trains, and dies in its save. Its run, and where it had restored."""
    storage, run = Dying(), make_run(seed=generation)
    manager = bench.manager(storage=storage, generation=generation)
    run.steps = restored = manager.restore(run.tracked).iteration
    storage.armed(at, fault)
    run.step(steps)
    with pytest.raises(Died):
        manager.save(run.tracked, meta(run.steps, generation=generation))
    assert storage.fired
    return run, restored


@pytest.mark.parametrize("committer", [RecordCommitter, NoRecord])
@pytest.mark.parametrize(("at", "fault"), COMPLETE)
def test_with_a_fault_in_every_save_the_durable_step_still_advances(tmp_path, at, fault, committer):
    bench = Bench(tmp_path / "root", committer=committer())
    for generation in range(1, 11):
        _, restored = die_in_save(bench, generation=generation, at=at, fault=fault)
        assert restored == generation - 1
        if generation > 1:
            assert RecordCommitter.record(bench.committer).iteration == generation - 1
    other = make_run(seed=99)
    assert bench.manager(generation=11).restore(other.tracked).iteration == 10
    assert same(other, make_run(seed=1).step(10))
    assert not list(bench.root.glob(".tmp*"))


@pytest.mark.parametrize(("at", "fault"), [(PUBLISH, Fault.DIE), (SYNC_ROOT, Fault.DIE)])
def test_several_ranks_adopt_together(tmp_path, at, fault):
    bench = Bench(tmp_path / "root")
    bench.manager(generation=1).save(make_run().step(2).tracked, meta(2))
    run, _ = die_in_save(bench, generation=2, at=at, fault=fault)
    others = [make_run(seed=20 + rank) for rank in range(3)]
    results = run_ranks(3, lambda group: bench.manager(group=group, generation=3).restore(others[group.rank].tracked))
    assert {each.iteration for each in results} == {3}
    assert all(same(other, run) for other in others)
    assert (bench.committer.kept.iteration, bench.committer.kept.generation) == (3, 3)
    assert (bench.root / "latest_checkpointed_iteration.txt").read_text() == "3"
    assert "adopted iteration 3" in " ".join(event.text for event in bench.events if event.kind == "notice")


def test_the_next_save_names_the_adopted_one_among_its_ancestors(tmp_path):
    bench = Bench(tmp_path / "root")
    bench.manager(generation=1).save(make_run().step(2).tracked, meta(2))
    die_in_save(bench, generation=2)
    manager, run = bench.manager(generation=3), make_run(seed=5)
    run.steps = manager.restore(run.tracked).iteration
    assert manager.save(run.step().tracked, meta(4, generation=3)).saved
    newest = next(bench.directory(4).glob("*-model-*"))
    newest.write_bytes(b"")
    assert bench.manager(generation=4).restore(make_run().tracked).iteration == 3


def test_what_comes_after_the_next_generation_began_is_too_late(tmp_path):
    bench = Bench(tmp_path / "root")
    bench.manager(generation=1).save(make_run().step(2).tracked, meta(2))
    zombie, state = bench.manager(generation=1), make_run(seed=8)
    zombie.restore(state.tracked)
    bench.manager(generation=2).restore(make_run().tracked)
    assert bench.committer.kept.generation == 2
    bench.committer.answer = CommitVerdict(granted=False, stale=True, reason="generation 2 exists")
    with pytest.raises(Fenced):
        zombie.save(state.step().tracked, meta(3, generation=1))
    bench.committer.answer = CommitVerdict(granted=True, reason="")
    assert bench.directory(3).exists()
    assert bench.manager(generation=3).restore(make_run().tracked).iteration == 2
    assert "never committed" in bench.reasons("checkpoint_rejected")
    assert not bench.directory(3).exists()


def test_a_refused_commit_of_a_newer_generation_is_fenced_on_all_ranks(tmp_path):
    bench = Bench(tmp_path / "root")
    bench.manager(generation=1).save(make_run().step(2).tracked, meta(2))
    die_in_save(bench, generation=2)
    bench.committer.answer = CommitVerdict(granted=False, stale=True, reason="generation 4 exists")
    fresh = [make_run(seed=9), make_run(seed=9)]
    caught = []

    def work(group):
        try:
            bench.manager(group=group, generation=3).restore(fresh[group.rank].tracked)
        except Fenced as error:
            caught.append(str(error))

    run_ranks(2, work)
    assert len(caught) == 2
    assert all("generation 4 exists" in text for text in caught)
    assert bench.committer.kept.iteration == 2


def test_a_store_that_does_not_answer_leaves_the_committed_one(tmp_path):
    bench = Bench(tmp_path / "root")
    bench.manager(generation=1).save(make_run().step(2).tracked, meta(2))
    die_in_save(bench, generation=2)
    bench.committer.answer = CommitVerdict(granted=False, reason="etcd does not answer")
    assert bench.manager(generation=3).restore(make_run().tracked).iteration == 2
    assert "could not be committed: etcd does not answer" in bench.reasons("checkpoint_rejected")


@pytest.mark.parametrize("at", [PUBLISH, SYNC_ROOT])
def test_a_damaged_one_is_not_adopted(tmp_path, at):
    bench = Bench(tmp_path / "root")
    bench.manager(generation=1).save(make_run().step(2).tracked, meta(2))
    die_in_save(bench, generation=2, at=at, fault=Fault.DIE)
    (path,) = [each for each in bench.root.rglob("*-model-*") if each.parent.name != "iteration_00000002"]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert bench.manager(generation=3).restore(make_run().tracked).iteration == 2
    assert bench.committer.kept.iteration == 2
    assert path.name in bench.reasons("checkpoint_rejected")


def test_one_that_was_not_finished_is_not_adopted(tmp_path):
    bench = Bench(tmp_path / "root")
    bench.manager(generation=1).save(make_run().step(2).tracked, meta(2))
    for at, fault in [(3, Fault.DIE), (5, Fault.DIE), (5, Fault.TEAR)]:
        die_in_save(bench, generation=2, at=at, fault=fault)
        assert list(bench.root.glob(".tmp*"))
        assert bench.manager(generation=2).restore(make_run().tracked).iteration == 2


def test_one_on_another_ground_is_not_adopted(tmp_path):
    bench = Bench(tmp_path / "root")
    bench.manager(generation=1).save(make_run().step(2).tracked, meta(2))
    other = bench.going_on()
    die_in_save(bench, generation=1, steps=5)
    # Meanwhile 4 was committed on the ground of 2: what also goes on from 2 leads elsewhere.
    other.save(make_run().step(4).tracked, meta(4))
    assert bench.directory(7).exists()
    assert bench.manager(generation=2).restore(make_run().tracked).iteration == 4
    assert bench.committer.kept.iteration == 4


def test_a_flipped_bit_in_the_tracker_does_not_lead_back(tmp_path):
    bench = Bench(tmp_path / "root", committer=NoRecord())
    manager, run = bench.manager(generation=0), make_run()
    for iteration in (10, 20, 30):
        assert manager.save(run.step().tracked, meta(iteration, generation=0)).saved
    tracker = bench.root / "latest_checkpointed_iteration.txt"
    flipped = bytes([tracker.read_bytes()[0] ^ 1]) + b"0"
    assert flipped == b"20"
    tracker.write_bytes(flipped)
    other = make_run(seed=5)
    restored = bench.manager(generation=0).restore(other.tracked)
    assert restored.iteration == 30
    assert same(other, run)
    assert "the tracker, which names that one, is behind" in restored.reason
    assert tracker.read_bytes() == b"30"
    # As load_path of another run, it decides, as the seed says; what it passes over is told.
    tracker.write_bytes(flipped)
    elsewhere = Bench(tmp_path / "other").manager(load_path=str(bench.root), generation=0).restore(make_run().tracked)
    assert elsewhere.iteration == 20
    assert "iteration 30 goes on from it" in elsewhere.reason


def test_a_store_that_lost_its_data_gets_a_record_again(tmp_path):
    bench = Bench(tmp_path / "root")
    bench.manager(generation=1).save(make_run().step(2).tracked, meta(2))
    kept, bench.committer.kept = bench.committer.kept, None
    assert bench.manager(generation=2).restore(make_run().tracked).iteration == 2
    assert bench.committer.kept == dataclasses.replace(kept, generation=2)
