"""Saves on a disk that stalls or is slow: they hold up training no longer than one waits, and nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from elastic.checkpoint import commit
from elastic.checkpoint.memory import MemoryTier
from elastic.checkpoint.root import claim
from elastic.checkpoint.seams import AloneGroup, CommitVerdict
from elastic.checkpoint.storage import PosixStorage
from elastic.clock import SYSTEM_CLOCK, ManualClock
from tests.harness.arenas import PLENTY, two_arenas
from tests.harness.checkpoints import Bench, make_run, meta, same
from tests.harness.gate import LIMIT_S, until
from tests.harness.ranks import run_ranks


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def tier(tmp_path) -> Iterator[MemoryTier]:
    made = MemoryTier(two_arenas(tmp_path), room=lambda: PLENTY)
    yield made
    made.close()


def commits(manager, run, iteration) -> None:
    """Save, and take it to its end at step boundaries."""
    manager.save(run.step(1).tracked, meta(iteration), wait=False)
    while manager.saving:
        until(lambda: manager.ready)
        manager.advance(all_ready=True)


def kept(bench) -> list[str]:
    return sorted(path.name for path in bench.root.glob("iteration_*"))


@pytest.mark.parametrize("stalls", ["make_dir", "write .safetensors", "write metadata.json", "publish 0"])
def test_but_not_for_ever(tmp_path, gate, tier, stalls):
    """A disk that stalls does not stop training, wherever in a save: what would wait for it is left out, and the first
    alone waits at all."""
    bench, gate.stalls = Bench(tmp_path / "root"), stalls
    run, clock = make_run().step(10), ManualClock()
    manager = bench.manager(storage=gate, save_mode="async", tier=tier, clock=clock)
    manager.save(run.tracked, meta(10), wait=False)
    until(lambda: gate.asked.is_set() or manager.ready)
    if not gate.asked.is_set():
        assert manager.advance(all_ready=True) is None
        until(gate.asked.is_set)
    for iteration, waits_s in ((20, 10), (30, 0), (40, 0)):
        before_s = clock.monotonic_s()
        left_out = manager.save(run.step(10).tracked, meta(iteration), wait=False)
        assert waits_s <= clock.monotonic_s() - before_s < waits_s + 1
        assert "iteration 10 is being written by ranks [0]" in left_out.reason
    assert bench.kinds() == ["notice"]
    gate.open.set()
    assert manager.settle().iteration == 10
    assert bench.events[-1].skipped == 3
    manager.save(run.step(10).tracked, meta(50), wait=False)
    assert manager.settle().saved
    other = make_run(seed=3)
    assert bench.manager().restore(other.tracked).iteration == 50
    assert same(other, run)


def test_what_makes_room_is_waited_for_at_the_end_alone(tmp_path, gate, tier):
    bench, gate.stalls = Bench(tmp_path / "root"), "facts"
    run = make_run().step(10)
    manager = bench.manager(storage=gate, save_mode="async", save_max=1, tier=tier, clock=SYSTEM_CLOCK)
    manager.save(run.tracked, meta(10))
    assert not gate.asked.is_set(), "there is nothing to delete"
    for iteration in (20, 30, 40):
        manager.save(run.step(10).tracked, meta(iteration), wait=False)
        until(lambda: manager.ready)
        assert manager.advance(all_ready=True) is None
        until(lambda: manager.ready)
        assert manager.advance(all_ready=True).saved
    assert gate.asked.is_set()
    kept = ["iteration_00000010", "iteration_00000020", "iteration_00000030", "iteration_00000040"]
    assert sorted(path.name for path in bench.root.glob("iteration_*")) == kept
    gate.open.set()
    manager.settle()
    assert manager.save(run.step(10).tracked, meta(50)).saved
    assert sorted(path.name for path in bench.root.glob("iteration_*")) == ["iteration_00000050"]


def test_waiting_counts_for_a_save_in_all_its_parts_together(tmp_path, gate, tier):
    bench, clock = Bench(tmp_path / "root"), ManualClock()
    manager = bench.manager(storage=gate, save_mode="async", tier=tier, clock=clock)
    run = make_run().step(10)
    manager.save(run.tracked, meta(10), wait=False)
    assert gate.asked.wait(LIMIT_S)
    written = threading.Event()

    def nine_seconds_later(seconds: float, sleep=clock.sleep) -> None:
        sleep(seconds)
        if clock.now_s >= 9 and not written.is_set():
            gate.stalls = "write metadata.json"
            gate.pause()
            until(lambda: manager.ready)
            written.set()

    clock.sleep = nine_seconds_later
    assert not manager.save(run.step(1).tracked, meta(11), wait=False).saved
    assert written.is_set()
    assert 10 <= clock.now_s < 11


def test_room_is_made_also_where_reading_back_takes_longer_than_the_next_commits(tmp_path, gate, tier):
    bench, gate.stalls = Bench(tmp_path / "root"), "facts"
    manager = bench.manager(storage=gate, save_mode="async", save_max=2, tier=tier, clock=SYSTEM_CLOCK)
    run = make_run()
    for iteration in range(1, 9):
        commits(manager, run, iteration)
    assert gate.asked.is_set()
    assert len(kept(bench)) == 8
    gate.stalls = "nothing"
    gate.open.set()

    def cleared() -> bool:
        manager.advance(all_ready=True)
        return kept(bench) == ["iteration_00000007", "iteration_00000008"]

    until(cleared)


def test_each_reading_back_frees_what_it_may_however_many_commits_came_meanwhile(tmp_path, gate, tier):
    bench, gate.stalls = Bench(tmp_path / "root"), "facts"
    manager = bench.manager(storage=gate, save_mode="async", save_max=2, tier=tier, clock=SYSTEM_CLOCK)
    run = make_run()
    for iteration in range(1, 6):
        commits(manager, run, iteration)
    assert gate.asked.wait(LIMIT_S)
    gate.stalls = "nothing"
    gate.open.set()  # that of the third commit goes on, long after it; what follows begins at a boundary only
    until(lambda: "iteration_00000001" not in kept(bench))
    assert kept(bench)[-2:] == ["iteration_00000004", "iteration_00000005"]


def test_the_last_save_does_not_wait_for_room_before_it_begins(tmp_path, gate, tier):
    bench, gate.stalls = Bench(tmp_path / "root"), "facts"
    manager = bench.manager(storage=gate, save_mode="async", save_max=1, tier=tier, clock=SYSTEM_CLOCK)
    run = make_run()
    commits(manager, run, 10)
    commits(manager, run, 20)
    assert gate.asked.wait(LIMIT_S)
    last = threading.Thread(target=lambda: manager.save(run.step(1).tracked, meta(30)))
    last.start()
    until(lambda: bench.committer.kept.iteration == 30)
    gate.open.set()
    last.join(LIMIT_S)
    assert kept(bench) == ["iteration_00000030"]


def test_what_is_left_of_a_refused_save_holds_up_nobody(tmp_path, gate, tier, monkeypatch):
    monkeypatch.setattr(commit, "_REMOVED_WITHIN_S", 0.05)
    bench, gate.stalls = Bench(tmp_path / "root"), "remove_tree"
    manager = bench.manager(storage=gate, save_mode="async", tier=tier, clock=SYSTEM_CLOCK)
    bench.committer.answer = CommitVerdict(granted=False, reason="does the disk stall?")
    commits(manager, make_run(), 10)
    assert gate.asked.is_set()
    assert bench.kinds() == ["checkpoint_failed"]


def test_a_copy_that_an_older_generation_was_writing_is_given_back_when_parts_follow(tmp_path, gate, tier):
    bench = Bench(tmp_path / "root")
    manager = bench.manager(storage=gate, save_mode="async", tier=tier, generation=1)
    manager.save(make_run().step(10).tracked, meta(10), wait=False)
    assert gate.asked.wait(LIMIT_S)
    assert tier.free == 1
    identity = claim(str(tmp_path / "root"), job_id="job")
    manager.serve(identity, group=AloneGroup(), committer=bench.committer, generation=2)
    manager._snapshots.settle(parts=True)
    manager.advance(all_ready=False)
    tier._written[1] = 100
    assert tier.free == 0


class Unmounted(PosixStorage):
    """What lies under `root` for others lies in `local` here: a mount point without its mount."""

    def __init__(self, root, local) -> None:
        self.root, self.local, self.made = str(root), str(local), 0

    def make_dir(self, path):
        self.made += 1
        super().make_dir(self._here(path))

    def write(self, path, data):
        super().write(self._here(path), data)

    def names(self, path):
        return super().names(self._here(path))

    def remove_tree(self, path):
        super().remove_tree(self._here(path))

    def _here(self, path):
        return str(path).replace(self.root, self.local)


def test_a_rank_that_lost_its_mount_leaves_nothing_on_its_own_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(commit, "VISIBLE_WITHIN_S", 0.1)
    (local := tmp_path / "local").mkdir()
    lost = Unmounted(tmp_path / "root", local)
    benches = [Bench(tmp_path / "root") for _ in range(2)]

    def rank(group):
        storage = PosixStorage() if group.rank == 0 else lost
        run = make_run().step(1)
        return benches[group.rank].manager(group=group, storage=storage).save(run.tracked, meta(1)).reason

    assert "one directory that all nodes share" in run_ranks(2, rank)[0]
    assert lost.made == 1
    assert list(local.iterdir()) == []
    assert not list((tmp_path / "root").glob(".tmp*"))
