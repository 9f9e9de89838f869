"""Saves that fail or die anywhere, and files that are damaged: the last good iteration always loads."""

from __future__ import annotations

import shutil

import pytest
import torch

from elastic.checkpoint.layout import CommitRecord
from elastic.checkpoint.seams import CommitVerdict
from elastic.errors import Fenced, NothingToRestore
from tests.harness.checkpoints import DEFAULTS, Bench, NoRecord, RecordCommitter, make_run, meta, same
from tests.harness.faulty_storage import Died, Fault, FaultyStorage

ORDER = [
    "make_dir .tmp-20-1-N",
    "write checkpoint-model-0000000-0000001.safetensors",
    "write checkpoint-opt-0000000-0000001.safetensors",
    "write common.json",
    "write metadata.json",
    "write elastic.json",
    "sync_dir .tmp-20-1-N",
    "publish iteration_00000020",
    "sync_dir root",
    "replace latest_checkpointed_iteration.txt",
]
PUBLISH = ORDER.index("publish iteration_00000020")
TRACKER = len(ORDER) - 1
COMMITTERS = [RecordCommitter, NoRecord]


@pytest.fixture(autouse=True, params=["sync", pytest.param("async", marks=pytest.mark.exhaustive)])
def _mode(request, monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.setitem(DEFAULTS, "save_mode", request.param)


class Watching(RecordCommitter):
    """Notes in the storage's calls when the commit came."""

    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def commit(self, record: CommitRecord):
        self.calls.append("COMMIT")
        return super().commit(record)


def saved_once(root, committer=None):
    """A bench with iteration 10 committed, and its run."""
    bench = Bench(root, committer=committer or RecordCommitter())
    run = make_run().step(10)
    assert bench.manager().save(run.tracked, meta(10)).saved
    bench.events.clear()
    return bench, run


def test_the_order_of_a_save(tmp_path):
    bench, run = saved_once(tmp_path / "root")
    storage = FaultyStorage()
    bench.committer = Watching(storage.calls)
    bench.manager(storage=storage).save(run.step().tracked, meta(20))
    calls = [call if ".tmp" not in call else call.rpartition("-")[0] + "-N" for call in storage.calls]
    assert calls == [*ORDER[:-1], "COMMIT", ORDER[-1]]


@pytest.mark.parametrize("committer", COMMITTERS)
@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.name)
@pytest.mark.parametrize("at", range(len(ORDER)), ids=ORDER)
def test_a_save_that_breaks_anywhere(tmp_path, at, fault, committer):
    bench, run = saved_once(tmp_path / "root", committer())
    before, after = run, make_run().step(20)
    storage = FaultyStorage(at=at, fault=fault)
    manager = bench.manager(storage=storage)
    result = None
    try:
        result = manager.save(after.tracked, meta(20))
    except Died:
        assert fault is not Fault.FAIL
    assert storage.fired
    if fault is Fault.FAIL:
        assert result is not None
        assert result.saved == (at == TRACKER)
        assert bench.kinds() == ["checkpoint_saved" if result.saved else "checkpoint_failed"]
        assert not list(bench.root.glob(".tmp*"))
        # The same manager goes on: the next save makes up for it.
        assert manager.save(after.tracked, meta(30)).saved
        shutil.rmtree(bench.directory(30))
        bench.committer.kept = None
    other = make_run(seed=5)
    iteration = bench.manager().restore(other.tracked).iteration
    committed = at == TRACKER
    published = at > PUBLISH or (at == PUBLISH and fault is Fault.DIE_AFTER)
    if fault is not Fault.FAIL and committer is RecordCommitter:
        assert iteration == (20 if committed else 10)
    if fault is not Fault.FAIL and committer is NoRecord:
        assert iteration == (20 if committed and fault is Fault.DIE_AFTER else 10)
    assert iteration in ((10, 20) if published else (10,))
    assert same(other, after if iteration == 20 else before)
    # And the next generation can save the same iteration again: leftovers are no obstacle and are not lost.
    other.steps = iteration
    other.step(20 - iteration)
    assert bench.manager().save(other.tracked, meta(20, generation=2)).saved or iteration == 20
    final = make_run(seed=6)
    assert bench.manager().restore(final.tracked).iteration == 20
    assert same(final, after)
    assert not list(bench.root.glob(".tmp*"))


NAMES = [
    "checkpoint-model-0000000-0000001.safetensors",
    "checkpoint-opt-0000000-0000001.safetensors",
    "common.json",
    "metadata.json",
    "elastic.json",
]


def flip(path, position):
    data = bytearray(path.read_bytes())
    at = {"first": 0, "middle": len(data) // 2, "last": len(data) - 1}[position]
    data[at] ^= 1
    path.write_bytes(data)


def truncate(path, _):
    path.write_bytes(path.read_bytes()[:-1])


def remove(path, _):
    path.unlink()


def empty(path, _):
    path.write_bytes(b"")


@pytest.mark.parametrize("committer", COMMITTERS)
@pytest.mark.parametrize(
    ("damage", "position"),
    [(flip, "first"), (flip, "middle"), (flip, "last"), (truncate, ""), (remove, ""), (empty, "")],
)
@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_file_is_named_and_the_one_before_is_used(tmp_path, name, damage, position, committer):
    bench, run = saved_once(tmp_path / "root", committer())
    bench.going_on().save(make_run().step(20).tracked, meta(20))
    bench.events.clear()
    damage(bench.directory(20) / name, position)
    other = make_run(seed=5)
    assert bench.manager().restore(other.tracked).iteration == 10
    assert same(other, run)
    assert bench.kinds()[0] == "checkpoint_rejected"
    assert bench.events[0].iteration == 20
    assert name in bench.events[0].reason
    # Training goes on and reaches 20 again: the damaged directory is set aside, not overwritten.
    other.steps = 10
    assert bench.manager().save(other.step(10).tracked, meta(20, generation=2)).saved
    assert bench.manager().restore(make_run().tracked).iteration == 20
    assert list(bench.root.glob(".aside-iteration_00000020-*"))


def test_everything_damaged_never_means_random_weights(tmp_path):
    bench, _ = saved_once(tmp_path / "root")
    flip(bench.directory(10) / NAMES[0], "middle")
    fresh = make_run(seed=5)
    with pytest.raises(NothingToRestore, match=f"{NAMES[0]} is not what was written"):
        bench.manager().restore(fresh.tracked)
    assert same(fresh, make_run(seed=5))
    shutil.rmtree(bench.directory(10))
    with pytest.raises(NothingToRestore, match="iteration 10 was committed"):
        bench.manager().restore(fresh.tracked)
    bench.committer.kept = None
    with pytest.raises(NothingToRestore, match="the tracker says 10"):
        bench.manager().restore(fresh.tracked)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", 20),
        (b"not a number", 20),
        (b"-20", 20),
        (b"999", 20),
        (b"10", 10),
        (b"\xef\xbb\xbf10\r\n", 10),
        (b"\xff\xfe\x00", 20),
        (b"1" * 5000, 20),
        (b"9" * (2 << 20), 20),
    ],
)
def test_trackers_of_all_kinds_without_a_record(tmp_path, text, expected):
    bench, _ = saved_once(tmp_path / "root", NoRecord())
    bench.going_on().save(make_run().step(20).tracked, meta(20))
    (bench.root / "latest_checkpointed_iteration.txt").write_bytes(text)
    assert bench.manager().restore(make_run().tracked).iteration == expected


def test_with_a_record_the_tracker_is_not_asked(tmp_path):
    bench, _ = saved_once(tmp_path / "root")
    (bench.root / "latest_checkpointed_iteration.txt").write_text("garbage")
    assert bench.manager().restore(make_run().tracked).iteration == 10


def test_a_stale_higher_directory_is_neither_chosen_nor_lost(tmp_path):
    bench, run = saved_once(tmp_path / "root")
    stale = Bench(bench.root)
    stale.manager().save(make_run(seed=8).step(3).tracked, meta(99_999_999))
    other = make_run(seed=5)
    assert bench.manager().restore(other.tracked).iteration == 10
    assert same(other, run)
    assert "never committed" in bench.reasons("checkpoint_rejected")
    assert not bench.directory(99_999_999).exists()
    assert list(bench.root.glob(".aside-iteration_99999999-*"))


def test_what_a_paused_writer_moved_away_is_found_again(tmp_path):
    bench, run = saved_once(tmp_path / "root")
    # A writer of an older generation, paused before its rename, sets the committed directory aside and takes its place.
    zombie = Bench(bench.root)
    bench.directory(10).rename(bench.root / ".aside-iteration_00000010-abc")
    zombie.manager().save(make_run(seed=8).step(3).tracked, meta(10, generation=0))
    other = make_run(seed=5)
    assert bench.manager().restore(other.tracked).iteration == 10
    assert same(other, run)
    assert "not the one that was committed" in bench.reasons("checkpoint_rejected")


def test_a_late_publish_of_an_older_number_is_never_fallen_back_to(tmp_path):
    bench, run = saved_once(tmp_path / "root")
    bench.going_on().save(run.step(10).tracked, meta(30, generation=2))
    # An older generation, asleep since iteration 10, wakes up and publishes 20; its commit is refused.
    zombie = Bench(bench.root)
    zombie.committer.answer = CommitVerdict(granted=False, stale=True, reason="generation 2 exists")
    with pytest.raises(Fenced):
        zombie.manager().save(make_run(seed=8).step(3).tracked, meta(20, generation=1))
    assert bench.directory(20).exists()
    flip(bench.directory(30) / NAMES[0], "middle")
    assert bench.manager().restore(make_run(seed=5).tracked).iteration == 10
    assert "not one of those that led to" in bench.reasons("checkpoint_rejected")


def test_an_older_generation_does_not_take_the_place_of_a_newer_one(tmp_path):
    bench, run = saved_once(tmp_path / "root")
    bench.manager().save(run.tracked, meta(20, generation=5))
    with pytest.raises(Fenced, match="generation 5"):
        bench.manager().save(make_run().tracked, meta(20, generation=4))
    assert bench.manager().restore(make_run().tracked).iteration == 20


def test_foreign_files_in_the_directory_do_not_exist(tmp_path):
    bench, run = saved_once(tmp_path / "root")
    source = bench.directory(10) / NAMES[0]
    shutil.copy(source, bench.directory(10) / "checkpoint-model-0000001-0000002.safetensors")
    (bench.directory(10) / "model-0000000-0000001.safetensors").write_bytes(b"rubbish")
    other = make_run(seed=5)
    assert bench.manager().restore(other.tracked).iteration == 10
    assert same(other, run)


def test_save_max_keeps_the_newest_and_only_deletes_after_a_commit(tmp_path):
    bench, run = saved_once(tmp_path / "root")
    manager = bench.manager(save_max=2)
    for iteration in (20, 30, 40):
        assert manager.save(run.step().tracked, meta(iteration)).saved
    assert [path.name for path in sorted(bench.root.glob("iteration_*"))] == [
        "iteration_00000030",
        "iteration_00000040",
    ]
    # What was renamed to be deleted is unlinked once a later commit was read back.
    assert [path.name.split("-")[1] for path in bench.root.glob(".trash*")] == ["iteration_00000020"]


@pytest.mark.parametrize("at", range(len(ORDER)), ids=ORDER)
def test_save_max_with_failing_saves_never_costs_the_last_good_one(tmp_path, at):
    bench, run = saved_once(tmp_path / "root")
    (bench.root / "iteration_00000099").mkdir()  # not ours: it counts for nothing and stays
    before = make_run().step(10)
    storage = FaultyStorage(at=at, fault=Fault.DIE)
    with pytest.raises(Died):
        bench.manager(storage=storage, save_max=1).save(run.step().tracked, meta(20))
    assert storage.fired
    other = make_run(seed=5)
    assert bench.manager(save_max=1).restore(other.tracked).iteration == (20 if at == TRACKER else 10)
    assert at == TRACKER or same(other, before)
    assert bench.manager(save_max=1).save(run.step().tracked, meta(30, generation=2)).saved
    assert [path.name for path in sorted(bench.root.glob("iteration_*"))] == [
        "iteration_00000030",
        "iteration_00000099",
    ]


def test_nothing_is_deleted_while_the_committed_one_cannot_be_read_back(tmp_path):
    bench, run = saved_once(tmp_path / "root")

    class Rotting(FaultyStorage):
        def publish(self, source, target):
            super().publish(source, target)
            if target.endswith("iteration_00000020"):
                flip(bench.directory(20) / NAMES[0], "middle")

    assert bench.going_on(storage=Rotting(), save_max=1).save(run.tracked, meta(20)).saved
    assert bench.directory(10).exists()
    assert "all stay" in " ".join(event.text for event in bench.events if event.kind == "notice")
    assert bench.manager().restore(make_run().tracked).iteration == 10
