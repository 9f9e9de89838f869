"""Disks as they are: full, failing, read-only, slow, late on one node; roots that are copied, moved or shared."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading

import pytest
import torch

from elastic.checkpoint.root import claim
from elastic.checkpoint.seams import LockCommitter
from elastic.checkpoint.storage import PosixStorage
from elastic.checkpoint.survey import VISIBLE_WITHIN_S
from elastic.clock import ManualClock
from elastic.errors import Fenced, NothingToRestore, RunMismatch, UsageError
from tests.harness.checkpoints import Bench, NoRecord, make_run, meta, same
from tests.harness.faulty_storage import Fault, FaultyStorage
from tests.harness.ranks import run_ranks


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path / "root")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG, errno.ESTALE])
def test_a_save_that_meets_an_error_is_told_tried_again_and_costs_nothing(bench, number):
    run = make_run().step(10)
    bench.manager(generation=1).save(run.tracked, meta(10))
    at = 0
    while True:
        before = make_run().step(10)
        bench.events.clear()
        storage = FaultyStorage(at=at, fault=Fault.FAIL, number=number)
        manager = bench.manager(storage=storage, generation=1)
        result = manager.save(before.tracked, meta(11 + at))
        if not storage.fired:
            break
        if not result.saved:
            assert os.strerror(number) in bench.reasons("checkpoint_failed")
            assert manager.due(12 + at)
            assert "is tried again" in manager.schedule.verdict(12 + at, counted=None, under_way=None).reason
        other = make_run(seed=5)
        assert bench.manager().restore(other.tracked).iteration >= 10
        assert same(other, run)
        at += 1
    assert at >= 10
    assert result.saved


def test_failed_saves_are_tried_again_at_growing_distances(bench):
    manager, run = bench.manager(save_interleaved_steps=100), make_run()
    bench.committer.answer = type(bench.committer.answer)(granted=False, reason="no answer")
    tried = []
    for step in range(100, 401):
        if manager.due(step):
            tried.append(step)
            assert not manager.save(run.tracked, meta(step)).saved
    assert tried == [100, 101, 103, 107, 115, 131, 163, 200, 300, 400]


class Ill(PosixStorage):
    """Reads of the newest model shard fail on this rank."""

    def read(self, path):
        self._fail(path)
        return super().read(path)

    def open_bulk(self, path):
        self._fail(path)
        return super().open_bulk(path)

    def _fail(self, path):
        if "iteration_00000020" in path and "-model-" in path:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)


def test_a_read_that_fails_on_one_rank_makes_all_fall_back(bench):
    manager, run = bench.manager(), make_run()
    manager.save(run.step().tracked, meta(10))
    before = make_run().step()
    manager.save(run.step().tracked, meta(20))
    others = [make_run(seed=9) for _ in range(3)]

    def work(group):
        storage = Ill() if group.rank == 2 else PosixStorage()
        return bench.manager(group=group, storage=storage).restore(others[group.rank].tracked).iteration

    assert run_ranks(3, work) == [10, 10, 10]
    assert all(same(other, before) for other in others)
    assert "rank 2" in bench.reasons("checkpoint_rejected")
    assert os.strerror(errno.EIO) in bench.reasons("checkpoint_rejected")


class Late(PosixStorage):
    """A node that sees what others wrote only after a while of its clock."""

    def __init__(self, clock, seconds, what):
        self._clock, self._seconds, self._what = clock, seconds, what
        self.hid = 0

    def _hidden(self, path):
        hidden = self._what in path and self._clock.monotonic_s() < self._seconds
        self.hid += hidden
        return hidden

    def names(self, path):
        return [] if self._hidden(path) else super().names(path)

    def size_bytes(self, path):
        return None if self._hidden(path) else super().size_bytes(path)

    def read(self, path):
        if self._hidden(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return super().read(path)


@pytest.mark.parametrize(("seconds", "expected"), [(5.0, 20), (VISIBLE_WITHIN_S + 5, 10)])
def test_a_node_that_sees_files_late_waits_for_them(bench, seconds, expected):
    manager, run = bench.manager(), make_run()
    manager.save(run.step().tracked, meta(10))
    manager.save(run.step().tracked, meta(20))
    others = [make_run(seed=9), make_run(seed=9)]
    clocks = [ManualClock(), ManualClock()]
    late = Late(clocks[1], seconds, "iteration_00000020")

    def work(group):
        manager = bench.manager(group=group, storage=late if group.rank else None, clock=clocks[group.rank])
        return manager.restore(others[group.rank].tracked).iteration

    assert run_ranks(2, work) == [expected, expected]
    assert late.hid
    assert same(*others)


def test_rank_0_waits_for_what_others_wrote(bench):
    clock = ManualClock()
    late = Late(clock, 5.0, "-opt-0000001-")
    run = make_run().step()

    def work(group):
        seen = {} if group.rank else {"storage": late, "clock": clock}
        return bench.manager(group=group, **seen).save(run.tracked, meta(10))

    results = run_ranks(2, work)
    assert all(result.saved for result in results)
    assert late.hid
    assert 5.0 <= results[0].seconds < VISIBLE_WITHIN_S


def test_a_slow_disk_of_one_rank_delays_the_save_and_breaks_nothing(bench):
    gate = threading.Event()

    class Slow(PosixStorage):
        def write(self, path, data):
            assert gate.wait(30)
            super().write(path, data)

    run = make_run().step()
    waiting = threading.Timer(0.2, gate.set)
    waiting.start()
    results = run_ranks(
        3,
        lambda group: bench.manager(group=group, storage=Slow() if group.rank == 1 else None).save(
            run.tracked, meta(10)
        ),
    )
    waiting.join()
    assert all(result.saved for result in results)
    assert bench.manager().restore(make_run().tracked).iteration == 10


@pytest.mark.parametrize("committer", [None, NoRecord()])
@pytest.mark.parametrize("how", ["copied", "moved", "linked"])
def test_a_root_elsewhere_still_loads(tmp_path, how, committer):
    bench = Bench(tmp_path / "root", **({"committer": committer} if committer else {}))
    manager, run = bench.manager(), make_run()
    for iteration in (10, 20):
        manager.save(run.step().tracked, meta(iteration))
    elsewhere = tmp_path / "a" / "b"
    elsewhere.parent.mkdir()
    {"copied": shutil.copytree, "moved": shutil.move, "linked": os.symlink}[how](bench.root, elsewhere)
    other = make_run(seed=5)
    assert Bench(elsewhere, committer=bench.committer).manager().restore(other.tracked).iteration == 20
    assert same(other, run)
    third = Bench(tmp_path / "third").manager(load_path=str(elsewhere))
    assert third.restore(make_run().tracked).iteration == 20


def test_a_copy_that_lacks_files_falls_back(tmp_path, bench):
    manager = bench.manager()
    for iteration in (10, 20):
        manager.save(make_run().tracked, meta(iteration))

    def lacking(path: str, names: list[str]) -> list[str]:
        # By the directory's own name: above it stands a number that each run of the tests counts up.
        return ["metadata.json"] if os.path.basename(path) == "iteration_00000020" else []

    shutil.copytree(bench.root, tmp_path / "copy", ignore=lacking)
    assert Bench(tmp_path / "copy", committer=bench.committer).manager().restore(make_run().tracked).iteration == 10


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o002])
def test_modes_of_all_that_a_save_makes_follow_the_umask(bench, mask):
    before = os.umask(mask)
    try:
        bench.manager().save(make_run().tracked, meta(10))
    finally:
        os.umask(before)
    for path in [bench.root, *bench.root.rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o777 if path.is_dir() else 0o666) & ~mask, path


def test_two_jobs_do_not_share_a_root(bench):
    bench.manager().save(make_run().tracked, meta(10))
    with pytest.raises(RunMismatch, match="belongs to the run 'job'"):
        bench.manager(job_id="other")
    lock = LockCommitter(str(bench.root))
    try:
        with pytest.raises(UsageError, match="in use"):
            LockCommitter(str(bench.root))
    finally:
        lock.close()


def test_two_starts_of_one_job_that_save_at_once_leave_one_good_iteration(bench):
    runs = [make_run().step(3), make_run().step(4)]
    barrier = threading.Barrier(2)
    claim(str(bench.root), job_id="job")
    saved = []

    def save(which):
        manager = bench.manager(generation=which + 1)
        barrier.wait(30)
        with contextlib.suppress(Fenced):
            saved.append(manager.save(runs[which].tracked, meta(10, generation=which + 1)))

    threads = [threading.Thread(target=save, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert any(each.saved for each in saved), saved
    other = make_run(seed=5)
    assert bench.manager(generation=3).restore(other.tracked).iteration == 10
    assert any(same(other, run) for run in runs)


def test_a_leftover_that_is_written_into_while_it_is_removed_costs_no_save(bench, caplog):
    left = bench.root / ".tmp-5-1-0"
    left.mkdir(parents=True)
    refused = []

    class Busy(FaultyStorage):
        def remove_tree(self, path):
            if path == str(left) and not refused:
                refused.append(path)
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
            super().remove_tree(path)

    manager = bench.manager(storage=Busy(), generation=2)
    assert manager.save(make_run().tracked, meta(10)).saved
    assert refused
    assert left.exists()
    assert ".tmp-5-1-0, left by generation 1, could not be removed" in caplog.text
    assert manager.save(make_run().tracked, meta(20)).saved
    assert not left.exists(), "the next save tries again"


def test_a_root_that_became_read_only_keeps_its_last_good_one(bench):
    bench.manager(generation=1).save(make_run().tracked, meta(10))

    class ReadOnly(FaultyStorage):
        def _change(self, verb, path, act, tear=None):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    manager = bench.manager(storage=ReadOnly(), generation=2)
    assert manager.restore(make_run().tracked).iteration == 10
    result = manager.save(make_run().tracked, meta(20))
    assert not result.saved
    assert os.strerror(errno.EROFS) in result.reason


def test_one_iteration_named_by_its_directory(tmp_path, bench):
    manager, run = bench.manager(), make_run()
    for iteration in (10, 20, 30):
        manager.save(run.step().tracked, meta(iteration))
    other = make_run(seed=4)
    elsewhere = Bench(tmp_path / "other")
    restored = elsewhere.manager(checkpoint_path=str(bench.directory(20)) + "/").restore(other.tracked)
    assert (restored.iteration, restored.own) == (20, False)
    assert same(other, make_run().step(2))
    # It is the one named, or none.
    next(bench.directory(20).glob("*-model-*")).write_bytes(b"")
    for path, told in [
        (bench.directory(20), "has 0 bytes"),
        (bench.directory(21), "is missing"),
        (bench.root, "elastic.json is missing"),
    ]:
        with pytest.raises(NothingToRestore, match=told):
            elsewhere.manager(checkpoint_path=str(path)).restore(make_run().tracked)
