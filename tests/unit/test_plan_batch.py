"""Batch plan and sharing of slots, against list comprehensions."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.plan.batch import BatchPlan, MicroSpan, share

quick = settings(deadline=None, max_examples=60)


@quick
@given(slots=st.integers(0, 40), world_size=st.integers(1, 50))
def test_shares_cover_the_slots_once_and_evenly(slots, world_size):
    shares = [share(slots, world_size=world_size, rank=rank) for rank in range(world_size)]
    assert [slot for part in shares for slot in part] == list(range(slots))
    sizes = [len(part) for part in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def naive_step(position, *, global_batch, micro_batch, total):
    """All slots of a step: cut the list of its samples into pieces."""
    samples = list(range(total))[position : position + global_batch]
    return [samples[i : i + micro_batch] for i in range(0, len(samples), micro_batch)]


plans = st.builds(
    BatchPlan,
    global_batch_size=st.integers(1, 30),
    micro_batch_size=st.integers(1, 35),
    total_samples=st.integers(0, 100),
)


@quick
@given(plan=plans, world_size=st.integers(1, 9), data=st.data())
def test_micro_batches_are_the_cut_step_shared_out(plan, world_size, data):
    position = data.draw(st.integers(0, plan.total_samples))
    expected = naive_step(
        position, global_batch=plan.global_batch_size, micro_batch=plan.micro_batch_size, total=plan.total_samples
    )
    got = [
        micro for rank in range(world_size) for micro in plan.micro_batches(position, world_size=world_size, rank=rank)
    ]
    assert [list(range(micro.start, micro.stop)) for micro in got] == expected
    assert [micro.slot for micro in got] == list(range(len(expected)))
    start, stop = plan.span(position)
    assert list(range(start, stop)) == [sample for piece in expected for sample in piece]


@quick
@given(plan=plans)
def test_walking_the_steps_uses_every_sample_once(plan):
    position, seen, steps = 0, [], 0
    while position < plan.total_samples:
        assert plan.steps_left(position) == plan.steps_left(0) - steps
        start, position = plan.span(position)
        seen.extend(range(start, position))
        steps += 1
    assert seen == list(range(plan.total_samples))
    assert plan.steps_left(position) == 0
    assert plan.micro_batches(position, world_size=2, rank=1) == ()


def test_the_last_micro_batch_may_be_smaller():
    plan = BatchPlan(global_batch_size=10, micro_batch_size=4, total_samples=15)
    assert plan.slots == 3
    assert plan.micro_batches(0, world_size=2, rank=1) == (MicroSpan(slot=2, start=8, stop=10),)
    assert plan.micro_batches(10, world_size=2, rank=0) == (
        MicroSpan(slot=0, start=10, stop=14),
        MicroSpan(slot=1, start=14, stop=15),
    )
    assert plan.micro_batches(10, world_size=2, rank=1) == ()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"global_batch_size": 0, "micro_batch_size": 1, "total_samples": 1}, "global_batch_size must be at least 1"),
        ({"global_batch_size": 1, "micro_batch_size": 0, "total_samples": 1}, "micro_batch_size must be at least 1"),
        ({"global_batch_size": 1, "micro_batch_size": 1, "total_samples": -1}, "must not be negative"),
    ],
)
def test_a_plan_refuses_what_cannot_be(values, message):
    with pytest.raises(ValueError, match=message):
        BatchPlan(**values)


def test_positions_and_ranks_outside_are_refused():
    plan = BatchPlan(global_batch_size=2, micro_batch_size=1, total_samples=4)
    with pytest.raises(ValueError, match=r"position must lie in 0\.\.4; got 5"):
        plan.span(5)
    with pytest.raises(ValueError, match=r"rank must lie in 0\.\.1; got 2"):
        share(4, world_size=2, rank=2)
