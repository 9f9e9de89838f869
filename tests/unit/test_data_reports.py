"""Public reports of data that was lost or used twice elsewhere, as cases of ours (docs/cases-data.md names them)."""

import itertools
import random
import sys

import pytest
import torch

import elastic
from elastic.checkpoint.reader import Restored
from elastic.clock import ManualClock
from elastic.data.stream import ShardStream
from elastic.distributed.group import Alone
from elastic.distributed.replicate import Replica
from elastic.history import audit_run, manifest_of
from elastic.plan.order import Order
from elastic.plan.progress import warmup_cosine
from elastic.session.source import DataSource
from tests.harness.ranks import run_tensor_ranks
from tests.harness.training import FEATURES, SAMPLES, course, dataset, model, per_sample, train


@pytest.fixture
def start(tmp_path, monkeypatch):
    """One start of a run that dies after `dies_after` of its steps; the items used in the committed ones."""
    monkeypatch.setattr(sys, "argv", ["train.py"])

    def start(data=None, *, dies_after=None, rates=None, **overrides):
        given = {"steps": 12, "global_batch_size": 10, "micro_batch_size": 4, "save_interleaved_steps": 1}
        given |= {"save_mode": "sync", "save_path": str(tmp_path / "run")}
        with elastic.Session(environ={}, **{**given, **overrides}) as run:
            net = run.parallelize(model())
            optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
            run.track(model=net, optimizer=optimizer, schedule=schedule)
            used = []
            for number, step in enumerate(run.steps(dataset() if data is None else data)):
                if number == dies_after:
                    raise Died
                with step:
                    for batch in step.micro_batches():
                        step.backward(per_sample(net, batch))
                    if rates is not None:
                        factor = warmup_cosine(step.stop, warmup_samples=50, total_samples=120)
                        optimizer.param_groups[0]["lr"] = factor
                        rates.append((step.stop, factor))
                used.append([index for _, index in step.used])
            return used

    return start


class Died(Exception):
    """A fault of a test."""


def died(start, *args, **options):
    with pytest.raises(Died):
        start(*args, **options)


@pytest.mark.parametrize("steps_per_epoch", [10, 11])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_saved_at_the_last_step_of_an_epoch_the_next_one_is_whole(size, steps_per_epoch):
    """Once exactly at the end of an epoch, once in the step that crosses it."""
    options = {"global_batch_size": 10, "data": torch.utils.data.Subset(dataset(), range(100)), "steps": 25}
    whole = train(Alone(), **options)
    state = whole.events[steps_per_epoch - 1]
    saved = Restored(
        reason="a test", iteration=state.iteration, consumed_samples=state.stop, run_digest=state.run_digest
    )
    for run in run_tensor_ranks(size, lambda group: train(group, restored=saved, **options)):
        rest = whole.events[steps_per_epoch:]
        assert [event.run_digest for event in run.events] == [event.run_digest for event in rest]
        assert run.events[-1].stop == 250


def test_a_run_may_end_with_an_epoch_and_go_on_later(start, tmp_path):
    data = torch.utils.data.Subset(dataset(), range(60))
    assert len(start(data, steps=6)) == 6
    assert start(data, steps=6) == [], "it is finished"
    assert len(start(data, steps=12)) == 6
    assert audit_run(tmp_path / "run").samples == 120


def test_restored_and_saved_again_the_state_is_the_same(start, tmp_path):
    """Without a step between; for streams, whose slots have states of their own, too."""
    for name, data in (("map", dataset()), ("stream", ShardStream(buffered, shards=3))):
        path = tmp_path / name
        start(data, steps=3, save_path=str(path))
        manifest = manifest_of(path, iteration=3)
        restored = Restored(reason="a test", iteration=3, consumed_samples=30, data=manifest.data)
        again = course(restored=restored, data=data, steps=5, micro_batch_size=4).save_meta().data
        assert again == manifest.data


def test_asking_moves_nothing():
    """What a checkpoint would hold, where the run stands, what is left: asked before the first step and in between."""
    asked, plain = course(), course()
    for at in (asked, plain):
        step_of(at)
    for _ in range(3):
        asked.save_meta()
        assert not asked.finished
    assert [step_of(asked) for _ in range(4)] == [step_of(plain) for _ in range(4)]


def step_of(at):
    net = model()
    step = at.next_step(Alone(), (Replica(net, Alone()),), lambda: False)
    with step:
        for batch in step.micro_batches():
            step.backward(per_sample(net, batch))
    at.commit(step)
    return step.used


def test_one_step_and_a_death_again_and_again(start, tmp_path):
    """More than two starts within an epoch, and fewer steps in each than anything is fetched ahead."""
    for _ in range(5):
        died(start, dies_after=1)
    start()
    order = Order(length=SAMPLES, seed=0)
    found = audit_run(tmp_path / "run")
    assert found.exact
    assert found.samples == 120
    assert order.index(SAMPLES) != order.index(0)


def test_more_steps_than_an_epoch_holds(start):
    data = torch.utils.data.Subset(dataset(), range(15))
    died(start, data, dies_after=4)
    used = list(itertools.chain(*start(data)))
    order = Order(length=15, seed=0)
    # The fourth step was done, but the loop died before it was committed.
    assert used == [order.index(sample) for sample in range(120)][-len(used) :]
    assert len(used) >= 80


def test_the_learning_rate_does_not_depend_on_how_often_it_was_resumed(start, tmp_path):
    plain, resumed = [], []
    start(rates=plain, save_path=str(tmp_path / "plain"))
    for _ in range(5):
        died(start, dies_after=2, rates=resumed)
    start(rates=resumed)
    assert dict(resumed) == dict(plain)


def buffered(shard, epoch):
    """A shard with a shuffle buffer, as streaming libraries have: its content lies in no state."""
    source = ((torch.full((FEATURES,), float(item)), item % 3) for item in range(9))
    buffer = list(itertools.islice(source, 4))
    for item in source:
        at = random.randrange(len(buffer))
        yield buffer[at]
        buffer[at] = item
    yield from buffer


def test_a_shuffle_buffer_loses_and_repeats_nothing(start, tmp_path):
    stream = ShardStream(buffered, shards=3)
    whole = train(Alone(), data=DataSource(dataset=stream), steps=12, micro_batch_size=4)
    died(start, stream, dies_after=5)
    start(stream)
    found = audit_run(tmp_path / "run")
    assert found.exact
    assert found.samples == 120
    assert manifest_of(tmp_path / "run", iteration=12).run_digest == whole.course.run_digest
    states = {int(slot): text for slot, text in manifest_of(tmp_path / "run", iteration=12).data["slots"].items()}
    assert states == whole.course._loader.states


def test_ranks_commit_the_same_position_or_none():
    """Nobody is a batch behind after a step, whatever share it had of it."""
    clock = ManualClock()

    def work(group):
        at = course(rank=group.rank, size=group.size, group=group, clock=clock)
        net = model()
        places = []
        for _ in range(3):
            step = at.next_step(group, (Replica(net, group),), lambda: False)
            with step:
                for batch in step.micro_batches():
                    step.backward(per_sample(net, batch))
            at.commit(step)
            places.append((at.iteration, at.consumed_samples, at.run_digest, at._loader.position))
        return places

    assert len({tuple(places) for places in run_tensor_ranks(6, work)}) == 1
