"""From one step to the next, on ranks that are not alike; and what is saved where a loop is left."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from elastic.activity import Activity, Doing
from elastic.checkpoint.memory import MemoryTier, Places
from elastic.checkpoint.outcome import Outcome
from elastic.checkpoint.room import Room
from elastic.checkpoint.storage import PosixStorage
from elastic.clock import ManualClock
from elastic.config.model import CheckpointSettings
from elastic.data.stream import ShardStream
from elastic.distributed.group import Alone
from elastic.distributed.replicate import Replica
from elastic.events import CheckpointFailed, CheckpointSaved, RunFinished, StepCommitted
from elastic.link import NoLink
from elastic.session.leaving import LeaveOnSignal
from elastic.session.pacing import Pacer
from elastic.session.staying import Staying
from elastic.session.stepping import Stepping
from tests.harness.checkpoints import Bench
from tests.harness.ranks import TensorGroup, run_tensor_ranks
from tests.harness.training import course, dataset, model, per_sample, settings, told_of


def read_pairs(shard: int, epoch: int):
    """A shard of five (features, label) pairs, the same each time."""
    return (dataset()[(5 * shard + item) % 101] for item in range(5))


def tier(directory: Path, *, whole: bool) -> MemoryTier:
    directory.mkdir()
    for name in "ab":
        (directory / name).touch()
    places = Places(own=(str(directory / "a"), str(directory / "b")), whole=whole)
    return MemoryTier(places, room=lambda: Room(available_bytes=1 << 40, cgroup_bytes=None))


def test_workers_of_one_node_and_nodes_without_a_tier_walk_alike(tmp_path):
    """Of a stream each copy in memory tells where all slots stand, so all ranks are asked, whoever keeps it."""
    bench = Bench(tmp_path / "root")
    kept = [tier(tmp_path / "first", whole=True), tier(tmp_path / "second", whole=False), None]
    kept.append(tier(tmp_path / "other", whole=True))

    def rank(group: TensorGroup) -> None:
        lies = Replica(model(), group)
        given = {"steps": 5, "data": ShardStream(read_pairs, shards=8)}
        at = course(rank=group.rank, size=group.size, group=group, **given)
        manager = bench.manager(group=group, generation=1, tier=kept[group.rank], memory_every_steps=2)
        stepping = Stepping(
            settings(steps=5),
            course=at,
            manager=manager,
            pacer=Pacer(
                CheckpointSettings(), schedule=manager.schedule, group=group, clock=ManualClock(),
                emit=bench.events.append, events=tmp_path,
            ),
            tracked={"model": lies.model},
            strategies=[lies],
            group=group,
            leaving=LeaveOnSignal(),
            staying=Staying(link=NoLink()),
            emit=bench.events.append,
        )  # fmt: skip
        for step in stepping.walk():
            with step:
                for batch in step.micro_batches():
                    step.backward(per_sample(lies.model, batch))
            if step.iteration == 5:  # the copies of step 4 are what is looked at
                break

    run_tensor_ranks(4, rank)
    for each in (kept[0], kept[3]):
        assert each is not None
        newest = each.held()[0].manifest
        assert newest.iteration == 4
        assert sorted(newest.data["slots"]) == ["0", "1", "2", "3"]
    for each in kept:
        if each is not None:
            each.close()


class Noting(Activity):
    """Remembers what was begun."""

    def __init__(self) -> None:
        super().__init__(None)
        self.begun: list[str] = []

    def begin(self, doing: Doing) -> None:
        self.begun.append(doing.name)


def test_what_may_take_long_is_no_hang(tmp_path):
    """The first step, in which a program may be compiled, and whatever waits for a disk: limits are learned of none."""
    bench = Bench(tmp_path / "root")
    lies, at = Replica(model(), Alone()), course(steps=3)
    noting = at.activity = Noting()
    manager = bench.manager(save_interleaved_steps=2)
    stepping = Stepping(
        settings(steps=3), course=at, manager=manager,
        pacer=Pacer(
            CheckpointSettings(), schedule=manager.schedule, group=Alone(), clock=ManualClock(),
            emit=bench.events.append, events=tmp_path,
        ),
        tracked={"model": lies.model}, strategies=[lies], group=Alone(), leaving=LeaveOnSignal(),
        staying=Staying(link=NoLink()), emit=bench.events.append,
    )  # fmt: skip
    for step in stepping.walk():
        with step:
            for batch in step.micro_batches():
                step.backward(per_sample(lies.model, batch))
    plain = ["BETWEEN", "SAVE", "BETWEEN"]
    saving = ["BETWEEN", "SAVE", "FLUSH", "BETWEEN"]
    assert noting.begun == ["FIRST", *plain, "STEP", *saving, "STEP", *saving, "STARTING"]


def leave(session, *, before=0, after=0):
    """Train until a loop's `break`: before a step is entered, or after it is done."""
    with session as run:
        net = run.parallelize(model())
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
        run.track(model=net, optimizer=optimizer)
        for step in run.steps(dataset()):
            if step.iteration == before:
                break
            with step:
                for batch in step.micro_batches():
                    step.backward(per_sample(net, batch))
                optimizer.step()
            if step.iteration == after:
                break


class Slow(PosixStorage):
    """A disk on which shards are only written after a while."""

    def write(self, path, data):
        if path.endswith(".safetensors"):
            threading.Event().wait(0.2)
        super().write(path, data)


def test_a_save_under_way_is_finished_where_a_loop_is_left_between_two_steps(make_session, tmp_path, monkeypatch):
    monkeypatch.setattr("elastic.session.roots.storage_for", lambda *paths, **others: Slow())
    leave(make_session(save_interleaved_steps=3), before=4)
    assert [event.iteration for event in told_of(tmp_path, StepCommitted)] == [1, 2, 3]
    assert [event.iteration for event in told_of(tmp_path, CheckpointSaved)] == [3]


def test_a_step_at_which_a_loop_is_left_and_that_cannot_be_saved_is_an_error(
    make_session, tmp_path, monkeypatch, caplog
):
    full = Outcome(committed=False, stale=False, reason="no space", manifest_digest="", total_bytes=0)
    monkeypatch.setattr("elastic.checkpoint.commit.Saving.advance", lambda self: full)
    with pytest.raises(SystemExit) as ended:
        leave(make_session(), after=2)
    assert ended.value.code == 70
    assert "step 2, at which the loop was left, was not saved: no space" in caplog.text
    assert len(told_of(tmp_path, CheckpointFailed)) == 1


def test_a_loop_left_at_the_last_step_is_a_finished_run(make_session, tmp_path):
    leave(make_session(), after=6)
    assert len(told_of(tmp_path, RunFinished)) == 1


def test_a_loop_left_at_a_step_that_is_no_number_goes_back_all_the_same(make_session, tmp_path):
    with make_session(on_nan="roll_back", save_interleaved_steps=2) as run:
        net = run.parallelize(model())
        run.track(model=net)
        for step in run.steps(dataset()):
            bad = step.iteration == 5
            with step:
                for batch in step.micro_batches():
                    step.backward(per_sample(net, batch) * (torch.nan if bad else 1.0))
                with torch.no_grad():
                    net[0].bias += 1
            if bad:
                break
    assert [event.iteration for event in told_of(tmp_path, StepCommitted)] == [1, 2, 3, 4, 5, 5]
    assert [event.iteration for event in told_of(tmp_path, CheckpointSaved)] == [2, 4, 5]


def test_saves_that_the_next_one_waits_for_are_learned_from(make_session, tmp_path, monkeypatch):
    monkeypatch.setattr("elastic.session.roots.storage_for", lambda *paths, **others: Slow())
    learned = []
    monkeypatch.setattr(Pacer, "after_save", lambda self, saved: learned.append(saved))
    leave(make_session(save_interleaved_steps=1, steps=4))
    ended = [saved for saved in learned if saved is not None and saved.saved]
    assert [saved.iteration for saved in ended] == [1, 2, 3, 4]
    assert all(saved.stall_s > 0.1 for saved in ended), "training has waited for each"
    assert [event.stall_s for event in told_of(tmp_path, CheckpointSaved)] == [saved.stall_s for saved in ended]
