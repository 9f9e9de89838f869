"""Digests of used samples: free of the world size, sharp on every difference, and never changed silently."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.data.digest import RUN_DIGEST_START, chain, merge, sample_digest, step_digest

pairs = st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), max_size=30)


@settings(deadline=None, max_examples=60)
@given(used=pairs, cuts=st.lists(st.integers(0, 30), max_size=4), order=st.randoms())
def test_parts_add_up_in_any_grouping(used, cuts, order):
    whole = step_digest(used)
    order.shuffle(used)
    edges = [0, *sorted(cuts), len(used)]
    parts = [step_digest(used[a:b]) for a, b in itertools.pairwise(edges)]
    assert merge(parts) == whole
    assert merge([int(sum(float(part) for part in parts))]) == whole  # as it travels in a float64 reduction


@settings(deadline=None, max_examples=60)
@given(used=pairs.filter(bool))
def test_a_sample_lost_or_used_twice_shows(used):
    assert step_digest(used[1:]) != step_digest(used)
    assert step_digest([*used, used[0]]) != step_digest(used)


def test_swapped_items_show():
    assert step_digest([(1, 10), (2, 20)]) != step_digest([(1, 20), (2, 10)])


def test_digests_are_well_spread():
    digests = {sample_digest(sample, sample % 37) for sample in range(20_000)}
    assert len(digests) > 19_990
    for bit in range(32):
        assert 0.47 < sum(digest >> bit & 1 for digest in digests) / len(digests) < 0.53


def test_the_order_of_steps_counts():
    assert chain(chain(RUN_DIGEST_START, 1), 2) != chain(chain(RUN_DIGEST_START, 2), 1)


def test_golden_values():
    """They are in checkpoints and event files of runs in progress."""
    assert (sample_digest(0, 0), sample_digest(1, 2)) == (2802244911, 3168394164)
    assert step_digest([(0, 0), (1, 2)]) == 1675671779
    assert chain(1, 2) == 3010476760
