"""What the recovery benchmark reads out of records, and when it says that a target is met."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from elastic.events import Cause, GroupReady, Record, Restored, StepCommitted, WorkerStarted, WorldFormed
from tests.bench.recovery import outage_rows, rows, silent_rows
from tests.bench.recovery_rounds import OwnRound, Recovery, recovery
from tests.bench.recovery_trouble import Outage, Trouble, outage
from tests.bench.stock import StockResult


def record(time_s: float, generation: int, event: Any) -> Record:
    return Record(time_s=time_s, node="a", rank=0, generation=generation, event=event)


def step(time_s: float, generation: int, iteration: int) -> Record:
    event = StepCommitted(
        iteration=iteration, start=0, stop=8, ranges=((0, 8),), step_samples=8, step_digest=0, run_digest=0, loss=1.0,
        world_size=2, seconds=0.1,
    )  # fmt: skip
    return record(time_s, generation, event)


FORMED = WorldFormed(
    world_size=2, nodes=("a", "b"), node_count=2, node_rank=0, cause=Cause.WORKER_EXIT, reason="", seconds=0.0,
    leader=True,
)  # fmt: skip


def test_stages_and_lost_steps():
    records = [
        *(step(9.0, 1, 20), step(10.2, 1, 21)),
        record(10.3, 2, FORMED),
        record(10.45, 2, WorkerStarted(worker_rank=0, pid=1, path="refork")),
        record(10.5, 2, GroupReady(backend="gloo", seconds=0.01)),
        record(10.6, 2, GroupReady(backend="gloo", seconds=0.01)),
        record(10.8, 2, Restored(tier="peer", iteration=19, consumed_samples=0, seconds=0.1, reason="")),
        *(step(11.0, 2, 20), step(11.5, 2, 21)),
    ]
    found = recovery(records, generation=1, at_s=10.0, step_s=0.1)
    assert found.seconds == pytest.approx(1.0)
    assert found.beyond_s == pytest.approx(0.9)
    assert found.lost_steps == 2
    expected = {"agree": 0.3, "spawn": 0.15, "init": 0.15, "restore": 0.2, "first_step": 0.2}
    assert found.stages == pytest.approx(expected)
    assert sum(found.stages.values()) == pytest.approx(found.seconds)


def test_what_an_outage_did():
    records = [step(1.0 + 0.1 * n, 1, n) for n in range(10)]
    found = outage(records, what="all members down", seconds=60.0, at_s=0.95, during=4)
    assert found == Outage(
        what="all members down", seconds=60.0, steps=4, restarts=0, lost_steps=0, pause_s=pytest.approx(0.1)
    )
    started = record(3.0, 2, WorkerStarted(worker_rank=0, pid=1, path="refork"))
    again = [record(2.5, 2, FORMED), record(2.5, 2, FORMED), started, step(4.0, 2, 8), step(4.1, 2, 9)]
    found = outage([*records, *again], what="", seconds=1.0, at_s=0.95, during=15)
    assert (found.steps, found.restarts, found.lost_steps) == (10, 2, 2)
    assert found.pause_s == pytest.approx(2.1)
    found = outage([step(31.0 + 0.1 * n, 1, n) for n in range(9)], what="", seconds=60.0, at_s=1.0, during=9)
    assert found.pause_s == pytest.approx(30.0), "what stands still from the beginning on counts"


GOOD = Recovery(seconds=0.3, step_s=0.1, stages={}, lost_steps=0)
SLOW = replace(GOOD, seconds=1.9)
UNHARMED = Outage(what="all members down", seconds=60.0, steps=100, restarts=0, lost_steps=0, pause_s=0.2)
TROUBLE = Trouble(frozen=[SLOW], cut=[SLOW], lease=[replace(GOOD, seconds=6.4)], outages=[UNHARMED])


def test_a_target_that_is_missed_shows():
    good = GOOD
    late = replace(good, seconds=0.4)
    one = OwnRound(
        start_s=5.0, worker=[good], leader=[good], agent=[good], node=[good], last_but_one=[late], join_pause_s=0.5,
        dealt_worker=[late], dealt_node=[replace(good, seconds=0.7)],
    )  # fmt: skip
    stock = StockResult(
        start_s=36.0, worker_kill_s=41.0, node_kill_s=8.0, join_s=40.0, froze=True, freeze_s=None,
        etcd_down_ended=3,
    )  # fmt: skip
    met = {row.case.partition(" (")[0]: row.met for row in rows([one], [5.0], TROUBLE, stock)}
    assert met == {
        "start of 3 nodes": True,
        "SIGKILL one worker": True,
        "SIGKILL one node": False,  # not 30 times as fast as stock's 8 s
        "SIGKILL the node of rank 0": True,
        "SIGKILL one node of two": False,  # 0.3 s beyond a step
        "SIGKILL an agent only": True,
        "fsdp2: SIGKILL one worker": True,
        "fsdp2: SIGKILL one node": False,  # 0.6 s beyond a step
        "a node joins: training paused": True,
        "SIGSTOP one node": True,
        "one node cut off silently": True,
        "SIGSTOP an agent only, by its lease": True,
        "etcd, all members down for 60 s: restarts, lost steps": True,
        "etcd in trouble: training paused, at most": True,
        "optimizer steps lost, at most": True,
    }
    one.worker = [replace(good, lost_steps=2)]
    assert not rows([one], [5.0], TROUBLE, stock)[-1].met
    assert not rows([one], [4.0], TROUBLE, stock)[0].met
    one.worker, one.dealt_node = [good], [replace(good, lost_steps=2)]
    assert not rows([one], [5.0], TROUBLE, stock)[-1].met, "after any fault"


def test_a_target_of_silent_faults_that_is_missed_shows():
    late = replace(GOOD, seconds=2.1)
    assert [row.met for row in silent_rows(replace(TROUBLE, frozen=[late], cut=[late]), None)] == [False, False, True]
    assert not silent_rows(replace(TROUBLE, lease=[replace(GOOD, seconds=6.6)]), None)[-1].met
    assert len(silent_rows(replace(TROUBLE, cut=[]), None)) == 2, "where no network can be made there is no row"
    for harm in ({"restarts": 1}, {"lost_steps": 1}, {"steps": 0}):
        assert [row.met for row in outage_rows([replace(UNHARMED, **harm)], None)] == [False, True]
    assert not outage_rows([UNHARMED, replace(UNHARMED, pause_s=1.1)], None)[-1].met
