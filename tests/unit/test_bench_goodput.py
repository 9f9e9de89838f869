"""The trace of faults is the same for everybody, and only steps that count are productive."""

from __future__ import annotations

from collections import Counter

from elastic.events import Cause, Record, Recovered
from tests.bench.goodput import MEAN_S, MIX, pauses_s, productive_s, recoveries, trace
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
