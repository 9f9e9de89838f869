"""Where a run stands: what a committed step moves, and nothing else does."""

import pytest

from elastic.activity import SIZE_BYTES, Activity, ActivityPage, Doing
from elastic.checkpoint.restored import Restored
from elastic.clock import ManualClock
from elastic.data.digest import chain, step_digest
from elastic.distributed.group import Alone
from elastic.distributed.replicate import Replica
from elastic.events import Notice, Record, StepCommitted
from elastic.history import told_order
from elastic.plan.data_order import DataOrder
from elastic.plan.order import ORDER_VERSION, Order
from elastic.session.course import ranges
from elastic.session.randomness import seed_slot, slot_seed
from tests.harness.training import SAMPLES, course, model, per_sample, train


@pytest.mark.parametrize(
    ("samples", "pairs"),
    [([], ()), ([4], ((4, 5),)), ([4, 5, 6], ((4, 7),)), ([4, 5, 9, 10, 7], ((4, 6), (9, 11), (7, 8)))],
)
def test_ranges(samples, pairs):
    assert ranges(iter(samples)) == pairs


def test_the_digest_is_a_chain_over_what_was_really_used():
    run = train(Alone(), steps=5)
    order, digest = Order(length=SAMPLES, seed=0), 0
    for number, event in enumerate(run.events):
        samples = range(number * 10, number * 10 + 10)
        digest = chain(digest, step_digest((sample, order.index(sample)) for sample in samples))
        assert (event.start, event.stop, event.step_samples) == (samples.start, samples.stop, 10)
        assert event.run_digest == digest
    assert run.course.run_digest == digest


def test_a_resumed_chain_goes_on():
    whole = train(Alone(), steps=6)
    middle = whole.events[2]
    state = Restored(reason="", iteration=3, consumed_samples=30, run_digest=middle.run_digest)
    assert [event.run_digest for event in train(Alone(), steps=6, restored=state).events] == [
        event.run_digest for event in whole.events[3:]
    ]


def test_only_a_commit_moves_it():
    events, clock = [], ManualClock(5.0)
    at = course(events=events, clock=clock)
    net = model()
    for _ in range(2):
        step = at.next_step(Alone(), (Replica(net, Alone()),), lambda: True)
        assert (step.iteration, step.start, step.stop) == (1, 0, 10), "the same step again"
        with step:
            for batch in step.micro_batches():
                step.backward(per_sample(net, batch))
    assert (at.iteration, at.consumed_samples, at.run_digest) == (0, 0, 0)
    (told,) = events
    assert (told.length, told.seed, told.order, told.order_version) == (SAMPLES, 0, "shuffle", ORDER_VERSION)
    assert told_order([Record(time_s=0.0, node="n", rank=0, generation=0, event=told)]) == DataOrder.of(
        Order(length=SAMPLES, seed=0)
    )
    clock.now_s = 7.0
    assert at.commit(step), "the wish for a regroup is agreed with the step"
    assert (at.iteration, at.consumed_samples) == (1, 10)
    told = events[-1]
    assert (told.seconds, told.ranges, told.world_size) == (2.0, ((0, 10),), 1)


def test_it_is_finished_when_all_samples_are_used():
    assert course(steps=3, restored=Restored(reason="", iteration=9, consumed_samples=30)).finished
    assert not course(steps=3, restored=Restored(reason="", iteration=9, consumed_samples=29)).finished


def test_what_a_checkpoint_says():
    at = course(restored=Restored(reason="", iteration=12, consumed_samples=SAMPLES + 25, run_digest=7))
    meta = at.save_meta()
    assert (meta.iteration, meta.consumed_samples, meta.run_digest) == (12, SAMPLES + 25, 7)
    assert (meta.epoch_num, meta.step_num, meta.global_step) == (1, 2, 12)
    assert meta.settings["training"]["global_batch_size"] == 10


@pytest.mark.parametrize(("saved", "rank", "told"), [(10, 0, False), (20, 0, True), (20, 1, False), (None, 0, False)])
def test_a_change_of_the_batch_size_is_told_once(saved, rank, told):
    events = []
    state = Restored(reason="", iteration=3, consumed_samples=60, global_batch_size=saved)
    course(rank=rank, size=2, events=events, restored=state)
    notices = [event.text for event in events if isinstance(event, Notice)]
    assert len(notices) == told
    if told:
        assert "global batch 20 -> 10" in notices[0]
        assert "going on at sample 60 exactly" in notices[0]


def test_randomness_is_of_the_slot():
    import random

    import numpy
    import torch

    def draws(**of):
        seed_slot(0, **of)
        return random.random(), float(numpy.random.random()), torch.rand(()).item()

    assert draws(iteration=1, slot=2) == draws(iteration=1, slot=2)
    seeds = {slot_seed(seed, iteration=i, slot=s) for seed in range(3) for i in range(9) for s in range(9)}
    assert len(seeds) == 3 * 81
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert draws(iteration=1, slot=2) != draws(iteration=2, slot=1)


def test_a_step_tells_how_long_it_took_without_waiting_for_others(tmp_path):
    page = tmp_path / "activity"
    page.write_bytes(bytes(SIZE_BYTES))
    events, clock = [], ManualClock()
    made = course(events=events, clock=clock)
    made.activity = Activity(ActivityPage.open(str(page)), clock=clock)
    made.activity.begin(Doing.STEP)
    net = model()
    for _ in range(2):
        step = made.next_step(Alone(), (Replica(net, Alone()),), lambda: False)
        with step:
            for batch in step.micro_batches():
                step.backward(per_sample(net, batch))
            clock.sleep(1.0)
            with made.activity.during(Doing.WAITING):
                clock.sleep(3.0)
            with made.activity.during(Doing.DATA):
                clock.sleep(0.5)
        made.commit(step)
        with made.activity.during(Doing.SAVE):
            clock.sleep(0.25)
    told = [event for event in events if isinstance(event, StepCommitted)]
    assert [(event.seconds, event.own_s) for event in told] == [(4.5, 1.5)] * 2
    assert step.totals.paces_s == (0.375,), "of the step before, by micro-batch"
    assert (told[1].data_s, told[1].save_s) == (0.5, 0.25)  # the save after the step before
