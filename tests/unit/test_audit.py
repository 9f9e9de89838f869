"""The audit accepts what is right and denies each kind of fault: a checker that cannot fail is a defect."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.data.audit import SavedState, account
from elastic.events import Record, Restored, RunFinished, StepCommitted, decode, encode
from tests.harness.histories import Life, change, small_order, small_plan, without, write_history

LIVES = (
    Life(generation=1, world_size=3, restored=0, steps=4),
    Life(generation=2, world_size=2, restored=2, steps=3),
    Life(generation=4, world_size=4, restored=5, steps=4),
)


@pytest.fixture
def records():
    return write_history(LIVES, plan=small_plan(), order=small_order())


def problems_of(records, order=None):
    found = account(records, order=order)
    assert not found.exact
    return "\n".join(found.problems)


def test_a_history_with_deaths_is_proved_by_ranges(records):
    found = account(records, order=small_order())
    assert found.problems == ()
    assert found.exact
    assert (found.steps, found.samples, found.used_twice, found.never_used) == (9, 100, 0, 0)
    assert (found.recomputed_steps, found.recomputed_samples) == (2, 24)
    assert (found.proved_by_ranges_steps, found.proved_by_digest_steps, found.unproved_steps) == (9, 0, 0)


def test_the_account_survives_the_event_files(records):
    read_back = [decode(encode(record)) for record in records]
    assert account(read_back, order=small_order()) == account(records, order=small_order())


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_any_history_of_deaths_is_accepted(data):
    plan, lives, reached = small_plan(total=200), [], 0
    for generation in range(data.draw(st.integers(1, 6))):
        restored = data.draw(st.integers(0, reached))
        steps = data.draw(st.integers(0, 17 - restored))
        world_size = data.draw(st.integers(1, 5))
        lives.append(Life(generation=generation, world_size=world_size, restored=restored, steps=steps))
        reached = restored + steps
    found = account(write_history(lives, plan=plan, order=small_order()), order=small_order())
    assert found.problems == ()
    assert (found.steps, found.samples, found.never_used) == (reached, min(200, reached * 12), 0)
    assert found.recomputed_steps == sum(life.steps for life in lives) - reached


def test_a_missing_record_is_proved_by_digest_only_with_the_order(records):
    torn = without(records, generation=2, rank=1, iteration=5)
    assert account(torn, order=small_order()).exact
    assert account(torn, order=small_order()).proved_by_digest_steps == 1
    blind = account(torn, order=None)
    assert (blind.unproved_steps, blind.exact) == (1, False)
    wrong = account(torn, order=small_order(seed=4))
    assert wrong.unproved_steps == wrong.steps


def test_no_events_prove_nothing():
    assert not account([], order=None).exact


def test_a_sample_used_twice_within_a_step(records):
    bad = change(records, generation=1, rank=1, iteration=1, ranges=((0, 5), (5, 10)))
    assert "were used twice" in problems_of(bad)
    assert account(bad, order=None).used_twice == 5


def test_a_sample_never_used(records):
    bad = change(records, generation=1, rank=1, iteration=1, ranges=((5, 9),))
    assert "1 samples of (0, 12) were never used" in problems_of(bad)
    assert account(bad, order=None).never_used == 1


def test_a_sample_of_another_step(records):
    bad = change(records, generation=1, rank=2, iteration=1, ranges=((10, 13),))
    assert "outside its span (0, 12)" in problems_of(bad)
    assert account(bad, order=None).used_twice == 1


def test_a_gap_between_steps_of_two_generations(records):
    bad = change(records, generation=4, rank=None, iteration=6, start=62)
    assert "starts at sample 62; the one before stopped at 60" in problems_of(bad)


def test_an_overlap_between_steps_counts_each_sample(records):
    bad = change(records, generation=4, rank=None, iteration=6, start=58)
    bad = change(bad, generation=4, rank=0, iteration=6, ranges=((58, 65),))
    found = account(bad, order=None)
    assert (found.used_twice, found.exact) == (2, False)


def test_a_step_that_is_missing_altogether(records):
    bad = records
    for rank in range(2):
        bad = without(bad, generation=2, rank=rank, iteration=4)
    assert "iteration 5 follows iteration 3" in problems_of(bad)
    assert account(bad, order=None).never_used == 12


def test_a_survivor_alone_cannot_cover_up_a_lost_sample(records):
    bad = change(
        without(records, generation=2, rank=1, iteration=5), generation=2, rank=0, iteration=5, step_samples=11
    )
    assert "used 11 samples of its span" in problems_of(bad, small_order())
    found = account(bad, order=small_order())
    assert (found.unproved_steps, found.never_used) == (1, 2)


def test_a_wrong_item_under_the_right_number(records):
    bad = change(records, generation=1, rank=None, iteration=2, step_digest=77)
    assert "digest 77 of the samples used; the order gives" in problems_of(bad, small_order())
    assert "run digest" in problems_of(bad)


def test_ranks_that_disagree(records):
    bad = change(records, generation=1, rank=1, iteration=2, step_digest=77)
    assert "ranks disagree on step_digest" in problems_of(bad)


def test_a_run_digest_that_does_not_follow(records):
    bad = change(records, generation=4, rank=None, iteration=7, run_digest=5)
    assert "iteration 7: run digest 5 does not follow" in problems_of(bad)


def restored(generation, rank, iteration, samples):
    event = Restored(tier="disk", iteration=iteration, consumed_samples=samples, seconds=0.0, reason="")
    return Record(time_s=0.0, node="n", rank=rank, generation=generation, event=event)


def test_restoring_what_was_never_committed(records):
    assert "restored iteration 30, which no" in problems_of([*records, restored(9, 0, 30, 360)])


def test_restoring_another_position_than_the_step_left(records):
    assert "restored 59 consumed samples" in problems_of([*records, restored(9, 0, 5, 59)])


def test_ranks_that_restored_different_states(records):
    bad = [*records, restored(9, 0, 5, 60), restored(9, 1, 4, 48)]
    assert "ranks restored different states" in problems_of(bad)


def test_steps_of_a_generation_that_restored_nothing(records):
    bad = [r for r in records if not (r.generation == 2 and isinstance(r.event, Restored))]
    assert "no rank told what it had restored" in problems_of(bad)


def test_a_step_committed_twice_by_one_rank(records):
    steps = [r for r in records if isinstance(r.event, StepCommitted)]
    assert "rank 0 committed iteration 1 twice" in problems_of([*records, steps[0]])


def test_a_step_at_or_before_what_was_restored(records):
    old = next(r for r in records if isinstance(r.event, StepCommitted) and r.event.iteration == 2)
    bad = [*records, dataclasses.replace(old, generation=4)]
    assert "restored iteration 5, yet committed iteration 2" in problems_of(bad)


def test_a_rank_beyond_the_world(records):
    bad = change(records, generation=1, rank=None, iteration=1, world_size=2)
    assert "rank 2 told of it, in a world of 2" in problems_of(bad)


@pytest.mark.parametrize(("samples", "exact"), [(100, True), (120, False)])
def test_the_end_of_the_run_must_be_where_it_says(records, samples, exact):
    end = RunFinished(iteration=9, consumed_samples=samples)
    found = account([*records, Record(time_s=1.0, node="n", rank=0, generation=4, event=end)], order=small_order())
    assert found.exact == exact
    assert found.never_used == samples - 100


def test_a_start_from_another_runs_checkpoint_is_told(records):
    later = [record for record in records if record.generation == 4]
    found = account(later, order=small_order())
    assert (found.first_sample, found.samples, found.exact) == (60, 40, True)


def test_a_world_of_one_started_again_keeps_its_generation():
    lives = (
        Life(generation=0, world_size=1, restored=0, steps=4),
        Life(generation=0, world_size=1, restored=3, steps=2),
    )
    found = account(write_history(lives, plan=small_plan(), order=small_order()), order=small_order())
    assert (found.exact, found.steps, found.recomputed_steps) == (True, 5, 1)


def test_many_problems_are_cut_short():
    plan, order = small_plan(total=1000), small_order()
    records = write_history([Life(generation=1, world_size=1, restored=0, steps=80)], plan=plan, order=order)
    found = account(records, order=small_order(seed=99))
    assert len(found.problems) == 21
    assert found.problems[-1] == "and 60 more problems"


def saved(**changes):
    return dataclasses.replace(SavedState(iteration=9, consumed_samples=100, run_digest=0), **changes)


def test_the_last_checkpoint_must_hold_the_digest_of_its_steps(records):
    last = next(record.event for record in reversed(records) if isinstance(record.event, StepCommitted))
    end = Record(time_s=1.0, node="n", rank=0, generation=4, event=RunFinished(iteration=9, consumed_samples=100))
    finished = [*records, end]
    right = saved(run_digest=last.run_digest)
    assert account(finished, order=small_order(), saved=right).exact
    for wrong, words in (
        (saved(run_digest=last.run_digest + 1), "the steps that led to it make"),
        (saved(run_digest=last.run_digest, consumed_samples=99), "the steps that led to it make"),
        (saved(run_digest=last.run_digest, iteration=12), "is saved, but no step of the lineage made it"),
    ):
        found = account(finished, order=small_order(), saved=wrong)
        assert not found.exact
        assert any(words in problem for problem in found.problems)
        assert account(records, order=small_order(), saved=wrong).exact, "a run under way may be ahead of what is saved"
