"""Order: a permutation of every epoch, well mixed, and never changed silently."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.plan.mix import mix64, mix_pair
from elastic.plan.order import ORDER_VERSION, Order, OrderKind


def epoch_indices(order, epoch):
    return [order.index(epoch * order.length + position) for position in range(order.length)]


@settings(deadline=None, max_examples=60)
@given(length=st.integers(1, 600), seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 10**6))
def test_every_epoch_is_a_permutation(length, seed, epoch):
    assert sorted(epoch_indices(Order(length=length, seed=seed), epoch)) == list(range(length))


@pytest.mark.parametrize("length", [1, 2, 3, 255, 256, 257, 1023, 1025, 4096, 4097])
def test_edges_of_the_network_are_permutations(length):
    assert sorted(epoch_indices(Order(length=length, seed=3), 2)) == list(range(length))


def test_sequential_is_the_identity_of_each_epoch():
    order = Order(length=5, seed=9, kind=OrderKind.SEQUENTIAL)
    assert [order.index(sample) for sample in range(12)] == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]


def test_epochs_and_seeds_differ():
    orders = [tuple(epoch_indices(Order(length=100, seed=seed), epoch)) for seed in range(5) for epoch in range(5)]
    assert len(set(orders)) == 25
    assert epoch_indices(Order(length=100, seed=1), 0) != epoch_indices(Order(length=100, seed=0), 1)


def test_small_data_sets_reach_all_their_permutations_evenly():
    draws = 2400
    counts = {}
    for seed in range(draws):
        key = tuple(epoch_indices(Order(length=4, seed=seed), 0))
        counts[key] = counts.get(key, 0) + 1
    expected = draws / 24
    assert len(counts) == 24
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_square < 49.7  # 23 degrees of freedom: exceeded by chance once in a thousand


def test_where_items_land_is_even():
    """Cells of (16th of the epoch, 16th of the data set) are filled evenly."""
    order, side = Order(length=8000, seed=11), 16
    counts = [[0] * side for _ in range(side)]
    for position, index in enumerate(epoch_indices(order, 1)):
        counts[position * side // order.length][index * side // order.length] += 1
    expected = order.length / side**2
    chi_square = sum((count - expected) ** 2 / expected for row in counts for count in row)
    assert chi_square < 298.0  # 225 degrees of freedom: exceeded by chance once in a thousand


def test_neighbours_are_not_kept_together():
    indices = epoch_indices(Order(length=10_000, seed=5), 0)
    close = sum(abs(a - b) <= 1 for a, b in itertools.pairwise(indices))
    assert close < 12  # 2 expected
    mean_distance = sum(abs(a - b) for a, b in itertools.pairwise(indices)) / len(indices)
    assert mean_distance == pytest.approx(10_000 / 3, rel=0.05)


def test_seeking_far_costs_nothing():
    order = Order(length=10**12, seed=0)
    assert order.index(5 * 10**12 + 123_456_789_012) == 435_277_487_576


def test_golden_values_of_the_order():
    """Runs in progress depend on these. Another order needs another ORDER_VERSION and a reader for this one."""
    assert ORDER_VERSION == 1
    assert mix64(0) == 0xE220A8397B1DCDAF  # the published first output of splitmix64 with seed 0
    assert mix_pair(1, 2) == 13608149317741381227
    assert epoch_indices(Order(length=10, seed=0), 0) == [2, 7, 1, 6, 5, 3, 4, 9, 8, 0]
    assert epoch_indices(Order(length=10, seed=7), 3) == [2, 0, 5, 3, 4, 9, 6, 1, 8, 7]
    large = Order(length=1_000_003, seed=42)
    assert [large.index(sample) for sample in (0, 1, 2, 5_000_000)] == [623926, 337459, 203799, 649364]


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="at least one item"):
        Order(length=0, seed=0)
    with pytest.raises(ValueError, match="start at 0"):
        Order(length=1, seed=0).index(-1)
