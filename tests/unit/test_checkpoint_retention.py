"""Retention: milestones, the last healthy one, and writers that sleep between their commit and their deletions."""

from __future__ import annotations

import pytest
import torch

from elastic.checkpoint.layout import CommitRecord
from elastic.checkpoint.policy import Signs, retention
from elastic.checkpoint.root import claim
from elastic.checkpoint.seams import AloneGroup
from elastic.checkpoint.storage import PosixStorage
from tests.harness.checkpoints import DEFAULTS, Bench, make_run, meta, same
from tests.unit.test_checkpoint_policy import found


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def places(bench):
    return [int(path.name.removeprefix("iteration_")) for path in sorted(bench.root.glob("iteration_*"))]


def test_milestones_are_kept_besides(tmp_path):
    bench = Bench(tmp_path / "root")
    manager, run = bench.manager(save_max=2, keep_every_steps=30), make_run()
    for iteration in range(10, 101, 10):
        assert manager.save(run.step().tracked, meta(iteration)).saved
    assert places(bench) == [30, 60, 80, 90, 100]
    assert len(list(bench.root.glob(".trash*"))) <= 1


def test_a_milestone_that_is_the_committed_one_takes_no_place():
    kept = [found(each) for each in (10, 20, 30, 40)]
    chosen = retention(kept, save_max=1, keep_every_steps=20, committed=40, lineage="ours")
    assert [each.iteration for each in chosen.delete] == [10]
    assert "keep_every_steps 20" in chosen.reason


def test_damaged_milestones_and_strays_go():
    seen = [
        found(10, problem="torn"),
        found(20),
        found(25, manifest_digest="of a state that led nowhere"),
        found(30),
        found(40),
    ]
    stray = found(20, manifest_digest="stray", place="x")
    chosen = retention([*seen, stray], save_max=1, keep_every_steps=10, committed=40, lineage="ours")
    assert [each.iteration for each in chosen.delete] == [10, 20, 25]
    assert chosen.delete[1] == stray


def test_the_newest_healthy_one_outlives_any_number_of_unhealthy_ones(tmp_path):
    bench = Bench(tmp_path / "root")
    manager, run = bench.manager(save_max=2), make_run()
    manager.save(run.step().tracked, meta(10))
    manager.save(run.step().tracked, meta(20))
    for iteration in range(30, 71, 10):
        manager.save(run.step().tracked, meta(iteration, signs=Signs(loss=float("nan"))))
    assert places(bench) == [20, 60, 70]
    assert bench.manager().restore(make_run().tracked).iteration == 20


class Sleeper(PosixStorage):
    """After its commit, sleeps at its n-th operation while `meanwhile` happens."""

    def __init__(self, at, meanwhile):
        self._left, self._meanwhile = at, meanwhile
        self.awake = False
        self.slept = False

    def _tick(self):
        if self.awake:
            self._left -= 1
            if self._left < 0 and not self.slept:
                self.slept = True
                self._meanwhile()

    def names(self, path):
        self._tick()
        return super().names(path)

    def size_bytes(self, path):
        self._tick()
        return super().size_bytes(path)

    def read(self, path):
        self._tick()
        return super().read(path)

    def facts(self, path):
        self._tick()
        return super().facts(path)

    def publish(self, source, target):
        self._tick()
        super().publish(source, target)

    def remove_tree(self, path):
        self._tick()
        super().remove_tree(path)

    def replace(self, path, data):
        self._tick()
        super().replace(path, data)


class Waking:
    """A committer that wakes the sleeper once the commit is made; its later questions are answered as they stand."""

    def __init__(self, inner, storage):
        self._inner, self._storage = inner, storage

    def record(self) -> CommitRecord | None:
        return self._inner.record()

    def commit(self, record):
        verdict = self._inner.commit(record)
        self._storage.awake = True
        return verdict

    def fence(self):
        return None  # the worst case: the sleeper looked just before it fell asleep


LONG = pytest.mark.exhaustive


@pytest.mark.parametrize(
    ("every", "mode"), [(5, "sync"), pytest.param(1, "sync", marks=LONG), pytest.param(1, "async", marks=LONG)]
)
@pytest.mark.parametrize("again", [False, True], ids=["goes on", "goes back"])
def test_a_writer_that_slept_after_its_commit_costs_nothing(tmp_path, monkeypatch, again, every, mode):
    """At every operation after its commit: others go on, commit and make room; then it wakes up and deletes."""
    monkeypatch.setitem(DEFAULTS, "save_mode", mode)
    slept = at = 0
    while True:
        bench = Bench(tmp_path / f"root{at}")
        first = bench.manager(save_max=2, generation=1)
        for iteration in (10, 20):
            assert first.save(make_run().step(iteration).tracked, meta(iteration)).saved
        newest = make_run().step(50)

        def meanwhile(bench=bench, newest=newest):
            if again:  # what the sleeper committed turns out to be damaged: the others go on from the one before
                next(bench.directory(30).glob("*-model-*")).write_bytes(b"")
            manager = bench.manager(save_max=1, generation=2)
            assert manager.restore(make_run().tracked).iteration == (20 if again else 30)
            for iteration in (30, 40) if again else (40, 50):
                assert manager.save(newest.tracked, meta(iteration, generation=2)).saved

        storage = Sleeper(at, meanwhile)
        sleeper = bench.manager(save_max=1, generation=1, storage=storage)
        sleeper.restore(make_run().tracked)
        waking = Waking(bench.committer, storage)
        sleeper.serve(claim(str(bench.root), job_id="job"), group=AloneGroup(), committer=waking, generation=1)
        sleeper.save(make_run().step(30).tracked, meta(30))
        if not storage.slept:
            break
        slept += 1
        other = make_run(seed=9)
        assert bench.manager(generation=3).restore(other.tracked).iteration == (40 if again else 50)
        assert same(other, newest)
        at += every
    assert slept > 15 // every
