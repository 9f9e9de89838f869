"""Progress: the step formulas are views of consumed samples, and say so when they are not exact."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.plan.progress import (
    Progress,
    epoch_of,
    global_step_view,
    scale_by_global_batch,
    scale_by_world_size,
    warmup_cosine,
)

quick = settings(deadline=None, max_examples=80)
sizes = st.integers(1, 300)
steps = st.integers(0, 5000)


def test_the_documented_example_of_the_batch_formula():
    scaled = scale_by_global_batch(1000, saved_global_batch=64, global_batch=128)
    assert (scaled.step, scaled.exact, scaled.remainder_samples) == (500, True, 0)


def test_the_documented_examples_of_the_world_size_formula():
    assert scale_by_world_size(100, saved_world_size=4, world_size=2).step == 200
    assert scale_by_world_size(100, saved_world_size=2, world_size=4).step == 50
    assert scale_by_world_size(100, saved_world_size=2, world_size=4).exact


def test_an_inexact_step_names_what_it_would_repeat_or_skip():
    scaled = scale_by_global_batch(1001, saved_global_batch=64, global_batch=96)
    assert (scaled.step, scaled.exact, scaled.remainder_samples) == (667, False, 32)
    assert "repeat 32 samples" in scaled.reason
    assert "skip 64" in scaled.reason
    assert "sample 64064" in scaled.reason
    odd = scale_by_world_size(101, saved_world_size=1, world_size=2, micro_batch_size=8)
    assert (odd.step, odd.exact, odd.remainder_samples) == (50, False, 8)


@quick
@given(step=steps, old=sizes, new=sizes)
def test_batch_formula_is_a_view_of_consumed_samples(step, old, new):
    consumed = step * old
    scaled = scale_by_global_batch(step, saved_global_batch=old, global_batch=new)
    assert scaled.step == int(step * old / new) == global_step_view(consumed, new)
    assert scaled.exact == (scaled.step * new == consumed)
    assert scaled.step * new + scaled.remainder_samples == consumed
    assert ("repeat" in scaled.reason) != scaled.exact


@quick
@given(step=steps, old=st.integers(1, 16), new=st.integers(1, 16), micro=st.integers(1, 32))
def test_world_size_formula_is_a_view_of_consumed_samples(step, old, new, micro):
    consumed = step * old * micro
    scaled = scale_by_world_size(step, saved_world_size=old, world_size=new, micro_batch_size=micro)
    assert scaled.step == step * old // new == consumed // (new * micro)
    assert scaled.exact == (scaled.step * new * micro == consumed)
    assert scaled.step * new * micro + scaled.remainder_samples == consumed


@quick
@given(batches=st.lists(sizes, min_size=1, max_size=20))
def test_samples_stay_exact_through_any_rescales_where_steps_drift(batches):
    progress = Progress()
    for batch in batches:
        before = progress
        progress = progress.advance(progress.consumed_samples + batch)
        assert progress.iteration == before.iteration + 1
    assert progress.consumed_samples == sum(batches)


def test_a_step_without_samples_is_refused():
    with pytest.raises(ValueError, match="must consume samples"):
        Progress(iteration=3, consumed_samples=30).advance(30)


def test_epochs():
    assert epoch_of(0, 7) == (0, 0)
    assert epoch_of(6, 7) == (0, 6)
    assert epoch_of(7, 7) == (1, 0)
    with pytest.raises(ValueError, match="dataset_length must be at least 1"):
        epoch_of(3, 0)


def test_learning_rate_factor_at_the_corners():
    factor = {n: warmup_cosine(n, warmup_samples=100, total_samples=1100, floor=0.1) for n in (0, 50, 100, 600, 1100)}
    assert factor == pytest.approx({0: 0.0, 50: 0.5, 100: 1.0, 600: 0.55, 1100: 0.1})
    assert warmup_cosine(5000, warmup_samples=100, total_samples=1100, floor=0.1) == pytest.approx(0.1)
    assert warmup_cosine(0, warmup_samples=0, total_samples=10) == 1.0
    assert warmup_cosine(10, warmup_samples=10, total_samples=10, floor=0.2) == pytest.approx(0.2)


@quick
@given(warmup=st.integers(0, 500), total=st.integers(1, 1000), batch=sizes)
def test_learning_rate_depends_on_samples_only_and_stays_in_bounds(warmup, total, batch):
    for consumed in range(batch, total + 1, batch):
        assert 0.0 <= warmup_cosine(consumed, warmup_samples=warmup, total_samples=total, floor=0.1) <= 1.0


@pytest.mark.parametrize(
    "bad", [{"saved_global_batch": 0, "global_batch": 1}, {"saved_global_batch": 1, "global_batch": 0}]
)
def test_nonsense_is_refused(bad):
    with pytest.raises(ValueError, match="must be at least 1; got 0"):
        scale_by_global_batch(1, **bad)
