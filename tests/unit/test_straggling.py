"""When a rank is called slower than the others, and when no more."""

from elastic.plan.straggling import STEPS, Straggling


def after(steps, paces_s, rank=0, begin=None):
    found = begin or Straggling()
    for _ in range(steps):
        found = found.after(paces_s, rank=rank)
    return found


def test_many_slow_steps_in_a_row_are_a_verdict():
    assert not after(STEPS - 1, (1.6, 1.0, 1.0)).slow
    found = after(STEPS, (1.6, 1.0, 1.0))
    assert found.slow
    assert (found.own_s, found.others_s) == (1.6, 1.0)
    assert not after(10 * STEPS, (1.4, 1.0, 1.0)).slow
    assert not after(10 * STEPS, (1.6, 1.0, 1.0), rank=1).slow


def test_a_single_good_step_begins_anew():
    found = after(STEPS - 1, (1.6, 1.0))
    found = after(1, (1.0, 1.0), begin=found)
    assert not after(STEPS - 1, (1.6, 1.0), begin=found).slow


def test_it_is_over_only_when_it_keeps_up_for_as_long():
    slow = after(STEPS, (2.0, 1.0))
    assert after(10 * STEPS, (1.3, 1.0), begin=slow).slow, "no to and fro at the edge"
    assert after(STEPS - 1, (1.0, 1.0), begin=slow).slow
    assert not after(STEPS, (1.0, 1.0), begin=slow).slow


def test_what_is_not_known_says_nothing():
    assert not after(10 * STEPS, (9.0,)).slow, "alone"
    assert not after(10 * STEPS, (9.0, 0.0)).slow
    assert not after(10 * STEPS, (0.0, 1.0)).slow
    assert after(STEPS, (2.0, 1.0, 0.0, 1.1)).slow, "some others are enough"


def test_the_median_of_the_others_counts():
    assert not after(10 * STEPS, (2.0, 2.0, 2.0, 0.1), rank=0).slow
    assert after(STEPS, (4.0, 1.0, 1.0, 9.0), rank=0).slow
