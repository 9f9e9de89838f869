"""The arithmetic of the overhead benchmark."""

import os

import pytest

from tests.bench.overhead import bounds, row
from tests.bench.overhead_cost import tree_cpu_s


def test_bounds_of_a_median_are_those_of_the_sign_test():
    assert bounds([1.0]) == (1.0, 1.0)
    assert bounds([1.0, 2.0, 3.0, 4.0, 5.0]) == (1.0, 5.0)
    assert bounds([float(n) for n in range(1, 11)]) == (2.0, 9.0)
    assert bounds([float(n) for n in range(1, 21)]) == (6.0, 15.0)


@pytest.mark.parametrize(("dear", "met"), [(1.0, True), (1.04, False)])
def test_a_row_needs_both_the_median_and_its_upper_bound(dear, met):
    mine = [1.0] * 6 + [dear] * 4
    found = row("seconds", mine, [1.0] * 10, judged=True)
    assert found.ours == 1.0
    assert found.met is met


def test_the_cost_of_a_process_tree():
    assert tree_cpu_s(os.getpid()) > 0
