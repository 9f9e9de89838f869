"""The trace of faults is the same for everybody, and only steps that count are productive."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from elastic.events import Cause, Record, Recovered
from tests.bench import goodput_stock
from tests.bench.goodput import pauses_s, productive_s, recoveries
from tests.bench.goodput_trace import MEAN_S, MIX, moving_s, trace
from tests.unit.test_bench_recovery import step


def test_the_trace_is_repeatable_and_mixed_as_it_says():
    assert trace(seed=1, seconds=600) == trace(seed=1, seconds=600)
    assert trace(seed=1, seconds=600) != trace(seed=2, seconds=600)
    long = trace(seed=3, seconds=200_000)
    assert abs(len(long) - 200_000 / MEAN_S) < 300
    shares = Counter(fault.kind for fault in long)
    assert all(abs(100 * shares[kind] / len(long) - percent) < 2 for kind, percent in MIX.items())
    assert [fault.at_s for fault in long] == sorted(fault.at_s for fault in long)


def test_where_the_rest_of_the_time_went():
    def recovered(cause: Cause, seconds: float) -> Record:
        event = Recovered(cause=cause, path="rejoin", seconds=seconds, lost_steps=0)
        return Record(time_s=0.0, node="a", rank=None, generation=1, event=event)

    told = [recovered(Cause.NODE_LOST, 0.5), step(1.0, 1, 1), recovered(Cause.NODE_LOST, 0.75)]
    assert recoveries(told) == {"node_lost by rejoin": [0.5, 0.75]}


def test_a_step_that_is_done_again_counts_once():
    assert productive_s([step(1.0, 1, 1), step(2.0, 1, 2), step(5.0, 2, 2), step(6.0, 2, 3)]) == 0.1 * 3
    assert productive_s([]) == 0.0
    assert pauses_s([step(1.0, 1, 1), step(2.0, 1, 2), step(5.0, 2, 2), step(6.0, 2, 3)]) == [3.0]


def test_a_step_counts_from_the_end_of_the_one_before_without_its_save():
    first, second, third = step(1.0, 1, 1), step(1.2, 1, 2), step(1.4, 1, 3)
    saving = replace(third, event=replace(third.event, save_s=0.15))
    assert productive_s([first, second, third]) == pytest.approx(0.1 + 0.2 + 0.2)
    assert productive_s([first, second, saving]) == pytest.approx(0.1 + 0.2 + 0.05)


def test_what_a_step_stood_still_is_not_productive():
    assert moving_s([1.0, 1.0, 2.0, 7.0]) == 4.0 + 1.5, "a median of 1.5: 2 is slow, 7 is standing"
    assert moving_s([]) == 0.0


def test_of_stock_each_step_counts_once_as_it_was_last_done():
    def row(t: float, step: int, pid: int) -> dict[str, float]:
        return {"t": t, "step": step, "pid": pid, "world": 2}

    first = [row(10.0 + n, n, pid) for n in range(1, 4) for pid in (7, 8)]
    again = [row(50.0 + 0.5 * n, n, 9) for n in range(2, 5)]
    assert goodput_stock.productive_s(first) == 3.0, "the first step has none before it and counts as the median"
    assert goodput_stock.productive_s(first + again) == 1.0 + 1.0 + 0.5 + 0.5, "1; 2 of an unknown time; 3; 4"
    assert goodput_stock.productive_s([]) == goodput_stock.productive_s(first[:1]) == 0.0
