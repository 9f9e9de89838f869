"""Power cuts, replayed from the record of a save's system calls; and the order of these calls."""

from __future__ import annotations

import os

import pytest
import torch

from elastic.checkpoint import keeping, storage, writing
from elastic.checkpoint.memory import MemoryTier
from elastic.checkpoint.storage import PosixStorage
from tests.harness.checkpoints import DEFAULTS, Bench, NoRecord, RecordCommitter, make_run, meta, same
from tests.harness.power import Call, Disk, Recorder, endings, lay_out

TRACKER = "latest_checkpointed_iteration.txt"


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def record_saves(bench, monkeypatch, *, iterations, save_max, generation, tier=None):
    """The calls of saves in a row, with a mark for each commit; and the disk as it was before them."""
    run = make_run()
    manager = bench.manager(save_max=save_max, generation=generation, tier=tier)
    run.steps = manager.restore(run.tracked).iteration
    disk = Disk(bench.root)
    with monkeypatch.context() as patch:
        recorder = Recorder(patch)
        commit = bench.committer.commit

        def marked(record):
            verdict = commit(record)
            recorder.mark(f"commit {record.iteration}")
            return verdict

        patch.setattr(bench.committer, "commit", marked)
        for iteration in iterations:
            run.step(iteration - run.steps)
            assert manager.save(run.tracked, meta(iteration, generation=generation)).saved
    return disk, recorder.calls


LONG = pytest.mark.exhaustive


@pytest.mark.parametrize(
    ("mode", "seeds"),
    [
        ("sync", range(1)),
        pytest.param("sync", range(1, 12), marks=LONG),
        pytest.param("async", range(3), marks=LONG),
    ],
)
@pytest.mark.parametrize("committer", [RecordCommitter, NoRecord])
def test_after_a_power_cut_at_any_call_every_load_succeeds(tmp_path, monkeypatch, committer, mode, seeds):
    monkeypatch.setitem(DEFAULTS, "save_mode", mode)
    calls, reached = cut_everywhere(tmp_path, monkeypatch, committer, seeds=seeds, iterations=(11, 12))
    assert any(call.verb == "unlink" for call in calls), "nothing was deleted: retention was not part of it"
    assert reached == {10, 11, 12}


@LONG
@pytest.mark.parametrize("committer", [RecordCommitter, NoRecord])
def test_the_same_where_saves_write_over_files_that_were_given_up(tmp_path, monkeypatch, committer):
    for module in (keeping, storage, writing):
        monkeypatch.setattr(module, "LARGE_BYTES", 64)  # every shard is a large one
    tier = MemoryTier()  # from memory in pages: what lies on the heap is written to new files
    calls, reached = cut_everywhere(
        tmp_path, monkeypatch, committer, seeds=range(3), iterations=(11, 12, 13, 14, 15), tier=tier
    )
    tier.close()
    over = [call for call in calls if call.verb == "rename" and "/.spare-" in call.path and "/.tmp-" in call.target]
    assert len(over) >= 4, "no save wrote over a file that was given up"
    assert reached == set(range(10, 16))


def cut_everywhere(tmp_path, monkeypatch, committer, *, seeds, iterations, tier=None):
    """Save, record, cut the power behind each call in several ways, restore: what all that gave."""
    bench = Bench(tmp_path / "root", committer=committer())
    bench.manager().save(make_run().step(10).tracked, meta(10))
    kept = {10: bench.committer.kept}
    truth = {each: make_run().step(each) for each in (10, *iterations)}
    commit = bench.committer.commit

    def keeping(record):
        kept[record.iteration] = record
        return commit(record)

    monkeypatch.setattr(bench.committer, "commit", keeping)
    disk, calls = record_saves(bench, monkeypatch, iterations=iterations, save_max=1, generation=2, tier=tier)
    committed, reached = 10, set()
    tried: set[int] = set()
    for upto in range(len(calls) + 1):
        if upto:
            disk.replay(calls[upto - 1])
            if calls[upto - 1].verb == "mark":
                committed = int(calls[upto - 1].path.split()[1])
        for way, rules in endings(seeds).items():
            image = disk.survive(**rules)
            if (what_is_left := hash((committed, tuple(sorted(image.items(), key=str))))) in tried:
                continue
            tried.add(what_is_left)
            left = tmp_path / "left"
            lay_out(image, left)
            other = make_run(seed=5)
            after = Bench(left, committer=type(bench.committer)(kept[committed]))
            iteration = after.manager(generation=3).restore(other.tracked).iteration
            what = f"{way}, after {upto} calls ({calls[upto - 1] if upto else 'none'})"
            assert iteration >= committed, what
            assert same(other, truth[iteration]), what
            reached.add(iteration)
    assert len(tried) > 50
    return calls, reached


def assert_order(calls, root):
    """Write before fsync before rename before fsync of the directory, for each file that a save makes."""
    shown = [(call.verb, call.path, call.target) for call in calls]

    def at(verb, path, target=""):
        found = [index for index, each in enumerate(shown) if each == (verb, path, target)]
        assert len(found) == 1, (verb, path, found)
        return found[0]

    (temp,) = {os.path.dirname(path) for verb, path, _ in shown if verb == "write" and ".tmp-" in path}
    files = [path for verb, path, _ in shown if verb == "write" and os.path.dirname(path) == temp]
    assert len(files) == len(set(files)) == 5
    publish = next(index for index, each in enumerate(shown) if each[:2] == ("rename", temp))
    for path in files:
        assert at("write", path) < at("fsync", path) < at("fsync", temp) < publish
    assert max(at("fsync", path) for path in files) == at("fsync", os.path.join(temp, "elastic.json"))
    syncs = [index for index, each in enumerate(shown) if each[:2] == ("fsync", str(root)) and index > publish]
    # Once for the name of the iteration, before the commit; once for the tracker's.
    (new,) = [path for verb, path, _ in shown if verb == "write" and f".{TRACKER}." in path]
    replaced = at("rename", new, os.path.join(str(root), TRACKER))
    assert publish < syncs[0] < at("write", new) < at("fsync", new) < replaced < syncs[1]
    return publish, syncs[0], at("write", new)


def test_the_order_of_the_calls(tmp_path, monkeypatch):
    bench = Bench(tmp_path / "root")
    _, calls = record_saves(bench, monkeypatch, iterations=(1,), save_max=5, generation=1)
    _, synced, tracker = assert_order(calls, bench.root)
    commits = [index for index, call in enumerate(calls) if call.verb == "mark"]
    assert len(commits) == 1
    assert synced < commits[0] < tracker


def test_the_claim_of_a_root_survives_too(tmp_path, monkeypatch):
    (tmp_path / "root").mkdir()
    storage, disk = PosixStorage(), Disk(tmp_path / "root")
    with monkeypatch.context() as patch:
        recorder = Recorder(patch)
        assert storage.create(str(tmp_path / "root" / "x"), b"mine")
    for upto in range(len(recorder.calls) + 1):
        if upto:
            disk.replay(recorder.calls[upto - 1])
        for rules in endings(range(3)).values():
            left = disk.survive(**rules)
            assert left.get("x", b"mine") == b"mine"
            assert "x" in left or upto < len(recorder.calls)


@pytest.mark.parametrize("skipped", ["file", "directory"])
def test_the_model_finds_a_sync_that_is_left_out(tmp_path, monkeypatch, skipped):
    """A check that cannot fail would prove nothing: without one kind of fsync a committed iteration is lost."""
    bench = Bench(tmp_path / "root")
    bench.manager().save(make_run().step(10).tracked, meta(10))
    disk, calls = record_saves(bench, monkeypatch, iterations=(11,), save_max=5, generation=2)

    def left_out(call: Call) -> bool:
        return call.verb == "fsync" and ("." in os.path.basename(call.path).lstrip(".")) == (skipped == "file")

    for call in calls:
        if not left_out(call):
            disk.replay(call)
    lay_out(disk.survive(**endings(())["nothing"]), tmp_path / "left")
    after = Bench(tmp_path / "left", committer=bench.committer)
    assert after.manager(generation=3).restore(make_run().tracked).iteration == 10
