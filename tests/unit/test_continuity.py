"""The live check of a node's samples: silent through every sound life, and it sees what does not follow."""

import random
from dataclasses import replace

import pytest

from elastic.events import Restored, StepCommitted
from elastic.metrics.fold import Metrics
from tests.harness.data_simulation import KINDS, make_setting, simulate
from tests.harness.histories import Life, change, small_order, small_plan, write_history

LIVES = (
    Life(generation=1, world_size=2, restored=0, steps=4),
    Life(generation=2, world_size=3, restored=2, steps=3),
)


@pytest.fixture
def records():
    return write_history(LIVES, plan=small_plan(), order=small_order())


def faults(records):
    """What an agent whose workers told all this would export."""
    metrics = Metrics()
    for record in records:
        metrics.apply(record)
    return next(
        sample.value
        for family in metrics.collect()
        for sample in family.samples
        if sample.name == "elastic_sample_faults_total"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_no_sound_life_is_denied(kind):
    for seed in range(8):
        chance = random.Random(f"continuity/{kind}/{seed}")
        run = simulate(make_setting(chance, kind=kind), chance)
        assert faults(run.records) == 0, seed


def test_a_sound_history(records):
    assert faults(records) == 0


@pytest.mark.parametrize(
    ("where", "what", "found"),
    [
        ({"generation": 1, "rank": 1, "iteration": 3}, {"start": 25}, 1),
        ({"generation": 1, "rank": 0, "iteration": 2}, {"step_samples": 11}, 1),
        ({"generation": 2, "rank": None, "iteration": 3}, {"step_digest": 5}, 1),
        ({"generation": 2, "rank": None, "iteration": 3}, {"start": 23}, 3),
    ],
    ids=["a gap", "a sample less", "other samples when done again", "a resume that is off by one, on three ranks"],
)
def test_what_does_not_follow_is_counted(records, where, what, found):
    assert faults(change(records, **where, **what)) == found


def test_going_on_elsewhere_than_the_step_left_off(records):
    wrong = [
        replace(record, event=replace(record.event, consumed_samples=23))
        if isinstance(record.event, Restored) and record.generation == 2
        else record
        for record in records
    ]
    assert faults(wrong) == 2 * 3, "each rank restores it, and its next step begins where the right one would"


def test_samples_that_a_policy_passes_over_are_no_fault(records):
    """A roll back gives up a step that was done, and skips its samples with those after it."""
    last = next(record for record in reversed(records) if isinstance(record.event, StepCommitted))
    restored = next(record for record in reversed(records) if isinstance(record.event, Restored))
    back = replace(restored, rank=last.rank, event=replace(restored.event, iteration=4, consumed_samples=48))
    skip = replace(
        last, event=replace(last.event, iteration=5, start=48, stop=72, step_samples=0, ranges=(), skipped="nan")
    )
    assert faults([*records, back, skip]) == 0
