"""Saves whose commit is not answered, since etcd is away: training goes on, and the answer counts when it comes."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest
import torch

from elastic.checkpoint.background import in_thread
from elastic.checkpoint.draft import common_of, draft_of
from elastic.checkpoint.image import heap_image
from elastic.checkpoint.layout import TRACKER, CommitRecord, ShardKind
from elastic.checkpoint.places import number, share
from elastic.checkpoint.root import RootIdentity, claim
from elastic.checkpoint.saving_apart import begin_saving
from elastic.checkpoint.seams import AloneGroup, CommitVerdict
from elastic.checkpoint.shards import Shard
from elastic.checkpoint.storage import PosixStorage
from elastic.clock import ManualClock
from elastic.errors import Fenced
from tests.harness.checkpoints import Bench, RecordCommitter, make_run, meta
from tests.harness.gate import LIMIT_S, Gate, until
from tests.harness.ranks import run_tensor_ranks


class SlowCommitter(RecordCommitter):
    """Answers once it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.open = threading.Event(), threading.Event()

    def commit(self, record: CommitRecord) -> CommitVerdict:
        self.asked.set()
        assert self.open.wait(LIMIT_S)
        return super().commit(record)


@pytest.fixture
def slow() -> Iterator[SlowCommitter]:
    made = SlowCommitter()
    yield made
    made.open.set()


@pytest.fixture
def bench(tmp_path, slow) -> Bench:
    torch.set_num_threads(1)
    return Bench(tmp_path / "root", committer=slow)


def asks(manager, run, iteration) -> None:
    """Save, up to where the committer is asked."""
    manager.save(run.tracked, meta(iteration), wait=False)
    until(lambda: manager.ready)
    assert manager.advance(all_ready=True) is None


def test_steps_go_on_meanwhile_and_saves_that_fall_due_are_left_out(bench, slow):
    clock, run = ManualClock(), make_run().step(10)
    manager = bench.manager(save_mode="async", clock=clock)
    asks(manager, run, 10)
    assert slow.asked.wait(LIMIT_S)
    for _ in range(3):
        assert not manager.ready
        assert manager.advance(all_ready=False) is None
    for iteration, waits_s in ((20, 0.5), (30, 0.0), (40, 0.0)):
        before_s = clock.monotonic_s()
        left_out = manager.save(run.step(10).tracked, meta(iteration), wait=False)
        assert waits_s <= clock.monotonic_s() - before_s < waits_s + 0.1
        assert "whether iteration 10 counts is being asked" in left_out.reason
    assert bench.kinds() == ["notice"]
    assert not (bench.root / TRACKER).exists()
    slow.open.set()
    until(lambda: manager.ready)
    assert manager.advance(all_ready=True).saved
    assert bench.events[-1].skipped == 3
    assert (bench.root / TRACKER).read_text() == "10"
    assert bench.events[-1].stall_s == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("stale", [True, False])
def test_a_late_refusal_counts_as_any(bench, slow, stale):
    manager = bench.manager(save_mode="async")
    slow.answer = CommitVerdict(granted=False, reason="generation 9 exists", stale=stale)
    asks(manager, make_run().step(10), 10)
    slow.open.set()
    until(lambda: manager.ready)
    if stale:
        with pytest.raises(Fenced, match="generation 9 exists"):
            manager.advance(all_ready=True)
    else:
        assert not manager.advance(all_ready=True).saved
    assert not list(bench.root.glob(".tmp*"))


def test_the_answer_to_an_older_generation_is_nobodys_and_keeps_no_group(bench, slow):
    class Group(AloneGroup):
        """One that a reference may be kept to."""

    old, identity = Group(), claim(str(bench.root), job_id="job")
    manager = bench.manager(group=old, save_mode="async", generation=1)
    asks(manager, make_run().step(10), 10)
    assert slow.asked.wait(LIMIT_S)
    manager.serve(identity, group=AloneGroup(), committer=RecordCommitter(), generation=2)
    gone = weakref.ref(old)
    del old
    gc.disable()
    try:
        slow.open.set()
        until(lambda: gone() is None)
    finally:
        gc.enable()
    assert manager.advance(all_ready=True) is None
    assert bench.events == []
    assert manager.save(make_run().step(20).tracked, meta(20, generation=2)).saved


def test_a_disk_that_stalls_under_the_tracker_does_not_stop_training(tmp_path):
    gate, clock = Gate(), ManualClock()
    gate.stalls = f"replace {TRACKER}"
    bench = Bench(tmp_path / "root")
    manager = bench.manager(storage=gate, save_mode="async", clock=clock)
    asks(manager, make_run().step(10), 10)
    assert gate.asked.wait(LIMIT_S)
    assert bench.committer.kept.iteration == 10
    assert "does a disk stall?" in manager.save(make_run().step(20).tracked, meta(20), wait=False).reason
    gate.open.set()
    assert manager.settle().saved


def test_with_private_directories_too(tmp_path, slow):
    def work(group):
        root = str(tmp_path / str(group.rank))
        claim(root, job_id="job")
        identity = RootIdentity(job_id="job", lineage="l")
        tensors = {"w": torch.zeros(4)}
        shard = Shard(name="model-0000000-0000001.safetensors", kind=ShardKind.MODEL, tensors=tensors)
        draft = draft_of(
            meta(5), identity=identity, values={}, health=None, world_size=2, has_optimizer=False, ancestors=()
        )
        saving = begin_saving(
            draft, common_of(meta(5), {}, None), lambda: [heap_image(shard)], root=root, storage=PosixStorage(),
            group=group, places=number(["x", "y"], rank=group.rank), committer=slow, nonce=lambda: f"{group.rank}",
            start=in_thread,
        )  # fmt: skip
        steps = 0
        while True:
            if slow.asked.is_set():
                steps += 1
                if steps == 5:
                    slow.open.set()
            if all(share(group, saving.ready)) and (outcome := saving.advance()):
                return outcome, steps

    for outcome, steps in run_tensor_ranks(2, work):
        assert outcome.committed
        assert not outcome.left_out
        assert steps >= 4, "boundaries were passed while the committer was asked"
    assert [(tmp_path / str(place) / TRACKER).read_text() for place in range(2)] == ["5", "5"]
