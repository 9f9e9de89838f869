"""Mixtures: every part has its share at any time, in its own order, and any sample is found without the others."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.plan.mixture import Mixture, whole_weights
from elastic.plan.order import Order


def mixture(lengths, weights):
    parts = tuple(Order(length=length, seed=number) for number, length in enumerate(lengths))
    return Mixture(parts=parts, weights=tuple(weights))


def part_of(index, lengths):
    for part, length in enumerate(lengths):
        if index < length:
            return part, index
        index -= length
    raise AssertionError(index)


@settings(deadline=None, max_examples=60)
@given(weights=st.lists(st.integers(1, 30), min_size=1, max_size=6), data=st.data())
def test_shares_are_right_at_any_time_and_each_part_keeps_its_order(weights, data):
    lengths = [data.draw(st.integers(1, 20)) for _ in weights]
    mixed, total = mixture(lengths, weights), sum(weights)
    counts = [0] * len(weights)
    for sample in range(3 * total):
        part, item = part_of(mixed.index(sample), lengths)
        assert item == mixed.parts[part].index(counts[part]), "the next one of its own order"
        counts[part] += 1
        for count, weight in zip(counts, weights, strict=True):
            assert abs(count - weight * (sample + 1) / total) < 1
    assert counts == [3 * weight for weight in weights]


def test_a_seek_needs_nothing_before_it():
    mixed = mixture([1000, 10], [7, 3])
    far = [mixed.index(sample) for sample in range(10**12, 10**12 + 10)]
    assert [part_of(index, [1000, 10])[0] for index in far].count(1) == 3


@pytest.mark.parametrize(
    ("given", "whole"),
    [((0.7, 0.3), (7, 3)), ((1, 1), (1, 1)), ((50, 100), (1, 2)), ((0.125, 2), (1, 16)), ((1e-3, 1), (1, 1000))],
)
def test_weights_are_taken_as_written(given, whole):
    assert whole_weights(given) == whole


@pytest.mark.parametrize("weights", [(), (0, 1), (-1, 2), (float("nan"), 1), (float("inf"), 1)])
def test_weights_that_are_none_are_refused(weights):
    with pytest.raises(ValueError, match="must be positive numbers"):
        whole_weights(weights)


def test_weights_of_too_many_digits_are_refused():
    with pytest.raises(ValueError, match="round them to fewer digits"):
        whole_weights((0.12345678, 1.0))
    with pytest.raises(ValueError, match="the most is"):
        mixture([1, 1], [10**6, 1])


def test_golden_values_of_a_mixture():
    assert [mixture([10, 5, 3], [5, 2, 1]).index(sample) for sample in range(16)] == [
        2,
        7,
        11,
        1,
        6,
        13,
        5,
        17,
        3,
        4,
        14,
        9,
        8,
        10,
        0,
        16,
    ]
