"""The live check of a run's samples: silent through every sound life, and it sees what does not follow."""

import random
from dataclasses import replace

import pytest

from elastic.events import Restored, StepCommitted
from elastic.metrics.fold import Metrics
from tests.harness.data_simulation import KINDS, make_setting, simulate
from tests.harness.histories import Life, change, small_order, small_plan, write_history
from tests.harness.scrape import samples

LIVES = (
    Life(generation=1, world_size=2, restored=0, steps=4),
    Life(generation=2, world_size=3, restored=2, steps=3),
)


@pytest.fixture
def records():
    return write_history(LIVES, plan=small_plan(), order=small_order())


def astray(records):
    """(replayed, missed, changed) samples that an agent whose workers told all this would export."""
    metrics = Metrics()
    for record in records:
        metrics.apply(record)
    found = samples(metrics)
    return tuple(found[f"elastic_samples_{what}_total",] for what in ("replayed", "missed", "changed"))


@pytest.mark.parametrize("kind", KINDS)
def test_no_sound_life_is_denied(kind):
    for seed in range(8):
        chance = random.Random(f"continuity/{kind}/{seed}")
        run = simulate(make_setting(chance, kind=kind), chance)
        assert astray(run.records) == (0, 0, 0), seed


def test_a_sound_history(records):
    assert astray(records) == (0, 0, 0)


@pytest.mark.parametrize(
    ("generation", "iteration", "what", "found"),
    [
        (1, 3, {"start": 25, "step_samples": 11}, (0, 1, 0)),
        (1, 3, {"start": 20, "step_samples": 16}, (4, 0, 0)),
        (1, 2, {"step_samples": 11}, (0, 1, 0)),
        (1, 2, {"step_samples": 13}, (1, 0, 0)),
        (2, 3, {"step_digest": 5}, (0, 0, 12)),
    ],
    ids=["a gap", "some again", "one left out", "one twice", "others when done again"],
)
def test_what_does_not_follow_is_counted(records, generation, iteration, what, found):
    assert astray(change(records, generation=generation, rank=None, iteration=iteration, **what)) == found


def test_going_on_elsewhere_than_the_step_left_off(records):
    wrong = [
        replace(record, event=replace(record.event, consumed_samples=23))
        if isinstance(record.event, Restored) and record.generation == 2
        else record
        for record in records
    ]
    assert astray(wrong) == (1, 1, 0), "the restore goes back one, and the step behind it passes that one by"


def test_samples_that_a_policy_passes_over_are_no_fault(records):
    """A roll back gives up a step that was done, and skips its samples with those after it."""
    last = next(record for record in reversed(records) if isinstance(record.event, StepCommitted))
    restored = next(record for record in reversed(records) if isinstance(record.event, Restored))
    back = replace(restored, rank=last.rank, event=replace(restored.event, iteration=4, consumed_samples=48))
    skip = replace(
        last, event=replace(last.event, iteration=5, start=48, stop=72, step_samples=0, ranges=(), skipped="nan")
    )
    assert astray([*records, back, skip]) == (0, 0, 0)
