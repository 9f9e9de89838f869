"""How often to save: the formula against its sources, what is measured of events, and the distance that follows."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.checkpoint.flight import SaveResult
from elastic.checkpoint.interval import (
    Costs,
    advise,
    lost_share,
    measure,
    next_steps,
    optimum_s,
    recent_records,
    usual_distance,
)
from elastic.checkpoint.policy import save_due
from elastic.checkpoint.seams import AloneGroup
from elastic.cli import main
from elastic.clock import ManualClock
from elastic.config.choices import SaveInterval
from elastic.config.model import CheckpointSettings
from elastic.events import Cause, CheckpointSaved, Record, Recovered, Restored, StepCommitted, WorldFormed, encode
from elastic.session.pacing import Pacer
from tests.harness.checkpoints import Bench, make_run, meta
from tests.harness.ranks import run_ranks

QUICK = settings(deadline=None, max_examples=100)


def costs(**others):
    return Costs(
        **(
            {"save_s": 5.0, "durable_s": 5.0, "restore_s": 30.0, "step_s": 0.5, "observed_s": 86400.0, "failures": 4}
            | others
        )
    )


@QUICK
@given(st.floats(0.001, 100), st.floats(100, 1e7), st.floats(0, 600))
def test_no_other_interval_loses_noticeably_less(wait_s, mean_time_s, restore_s):
    best_s = optimum_s(wait_s, mean_time_s=mean_time_s)
    how = {"wait_s": wait_s, "restore_s": restore_s, "mean_time_s": mean_time_s}
    lost = lost_share(best_s, **how)
    assert 0 <= lost <= 1
    for factor in (0.25, 0.5, 0.8, 1.25, 2, 4):
        assert lost <= lost_share(best_s * factor, **how) + 0.003


def test_for_cheap_saves_it_is_youngs():
    assert optimum_s(1, mean_time_s=1e6) == pytest.approx(math.sqrt(2 * 1e6), rel=0.002)
    assert optimum_s(10, mean_time_s=3600) == pytest.approx(261.7, abs=0.1)
    assert optimum_s(300, mean_time_s=100) == 100  # a save takes longer than the run lives


def test_loss_counts_the_saves_where_nothing_fails():
    assert lost_share(100, wait_s=1, restore_s=0, mean_time_s=1e12) == pytest.approx(1 / 101, rel=1e-3)
    assert lost_share(1e6, wait_s=1, restore_s=0, mean_time_s=1) == 1.0


def test_advice_says_what_it_rests_on():
    advice = advise(costs(), every_steps=1000)
    assert advice.every_steps == pytest.approx(math.sqrt(2 * 5 * 18000) / 0.5, rel=0.03)
    assert advice.lost_share < advice.lost_share_now
    seen = "4 failures in 24.0 h, with one in 1.0 h taken for granted, are one every 5.0 h"
    assert advice.reason == f"a save takes 5 s, a step 0.5 s, and {seen}"
    calm = advise(costs(failures=0), every_steps=None)
    assert calm.every_steps > advice.every_steps
    assert calm.lost_share_now is None
    assert "0 failures in 24.0 h" in calm.reason
    assert "one every 25.0 h" in calm.reason
    assert "told to come every 1.0 h" in advise(costs(), every_steps=None, mean_time_s=3600).reason


def test_what_is_unknown_gives_no_advice():
    assert advise(costs(save_s=None), every_steps=10).reason == "no save was seen yet"
    assert advise(costs(step_s=None), every_steps=10).every_steps is None


def test_a_run_that_fails_all_the_time_does_not_spend_it_saving():
    advice = advise(costs(failures=100_000), every_steps=10)
    assert advice.interval_s >= 10 * 5


def test_the_distance_changes_with_reason_only():
    advice = advise(costs(), every_steps=1000)
    wanted = advice.every_steps
    assert next_steps(advice, every_steps=round(wanted * 1.1)) == round(wanted * 1.1)
    assert next_steps(advice, every_steps=10_000) == wanted
    assert next_steps(advice, every_steps=10) == 40
    assert next_steps(advise(costs(save_s=None), every_steps=1), every_steps=7) == 7


def records():
    def record(time_s, generation, event, rank=0):
        return Record(time_s=time_s, node="a", rank=rank, generation=generation, event=event)

    def step(n, seconds=0.5):
        return StepCommitted(iteration=n, start=0, stop=1, ranges=(), step_samples=1, step_digest=0, run_digest=0,
                             loss=1.0, world_size=2, seconds=seconds)  # fmt: skip

    def formed(cause):
        return WorldFormed(world_size=2, nodes=("a", "b"), cause=cause, reason="", seconds=0.1, leader=True,
                           node_count=2, node_rank=0)  # fmt: skip

    def saved(n):
        return CheckpointSaved(iteration=n, consumed_samples=n, bytes=1, seconds=2.0, interval_s=None)

    def restored(tier):
        return Restored(tier=tier, iteration=0, consumed_samples=0, seconds=3.0, reason="")

    return [
        record(0, 1, formed(Cause.START), None), record(0, 1, restored("none")),
        *(record(10 + n, 1, step(n)) for n in range(101)), record(60, 1, saved(50)), record(110, 1, saved(100)),
        record(500, 2, formed(Cause.NODE_LOST), None), record(500, 2, formed(Cause.NODE_LOST), None),
        record(501, 2, restored("disk")), record(510, 2, step(101)), record(610, 2, step(200)),
        record(611, 2, saved(150)), record(700, 3, formed(Cause.NODE_JOINED), None),
        record(710, 3, step(201)), record(760, 3, step(300)),
    ]  # fmt: skip


def test_what_events_tell():
    seen = measure(records())
    assert seen == Costs(save_s=2.0, durable_s=2.0, restore_s=3.0, step_s=0.5, observed_s=250.0, failures=1)
    recovered = Recovered(cause=Cause.NODE_LOST, path="reexec", seconds=9.0, lost_steps=3)
    more = [*records(), Record(time_s=800, node="a", rank=None, generation=2, event=recovered)]
    assert measure(more).restore_s == 9.0
    assert usual_distance(records()) == 50
    assert usual_distance([]) is None


def test_the_command(tmp_path, capsys):
    (tmp_path / "events").mkdir()
    text = "\n".join(encode(each) for each in records())
    (tmp_path / "events" / "a.jsonl").write_text('torn": 1}\n' + text + '\n{"half')
    assert len(recent_records(tmp_path / "events")) == len(records())
    assert main(["ckpt", "advise", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("save every 173 steps (86.4 s): a save takes 2 s, a step 0.5 s, and 1 failures in 250 s")
    assert "so far, every 50 steps" in out
    assert main(["ckpt", "advise", str(tmp_path), "--json", "--mean-hours", "24"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["every_steps"] > 1000
    assert told["costs"]["failures"] == 1
    assert main(["ckpt", "advise", str(tmp_path / "events")]) == 64


def test_by_distance():
    def due(iteration, last):
        return save_due(iteration, enable_save=True, every_steps=7, last_saved=last, by_distance=True).due

    assert next(n for n in range(1, 20) if due(n, None)) == 7
    assert not due(15, 9)
    assert due(16, 9)


def test_with_weights_and_state_of_another_run_the_distance_counts_from_where_that_one_was(tmp_path):
    Bench(tmp_path / "one").manager().save(make_run().step(3).tracked, meta(300))
    manager = Bench(tmp_path / "two").manager(load_path=str(tmp_path / "one"))
    assert manager.restore(make_run().tracked).iteration == 300
    manager.schedule.pace(every_steps=7)
    assert not manager.due(301)
    assert manager.due(307)


class _Schedule:
    def __init__(self):
        self.paces = []

    def pace(self, *, every_steps):
        self.paces.append(every_steps)


def pacer(tmp_path, manager, clock, group=None, emit=lambda event: None, **others):
    checkpoint = CheckpointSettings(save_interval=SaveInterval.AUTO, save_interleaved_steps=100, **others)
    return Pacer(checkpoint, schedule=manager, group=group or AloneGroup(), clock=clock, emit=emit, events=tmp_path)


def test_the_distance_follows_what_saves_cost_and_all_ranks_agree(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n".join(encode(each) for each in records()) + "\n")
    told = []

    def work(group):
        manager, clock = _Schedule(), ManualClock()
        # Only rank 0 sees events, and the ranks' clocks differ.
        here = tmp_path if group.rank == 0 else tmp_path / "none"
        one = pacer(here, manager, clock, group=group, emit=told.append)
        one.begin(0)
        for n in range(1, 4):
            clock.sleep(50.0 + group.rank)
            one.after_save(
                SaveResult(saved=True, iteration=100 * n, total_bytes=1, seconds=20.0, stall_s=20.0, reason="")
            )
        return manager.paces

    paces = run_ranks(3, work)
    assert paces[0] == paces[1] == paces[2]
    assert paces[0][0] == 173
    assert paces[0][-1] > 173, "saves turned out to be dear"
    assert told[0].text.startswith("saves every 173 steps instead of 100: a save takes 2 s")


def test_failed_saves_teach_nothing_and_fixed_stays_fixed(tmp_path):
    manager = _Schedule()
    one = pacer(tmp_path, manager, ManualClock())
    one.after_save(SaveResult(saved=False, iteration=100, total_bytes=0, seconds=5.0, reason="no space"))
    assert manager.paces == [100]
    fixed = _Schedule()
    other = Pacer(
        CheckpointSettings(), schedule=fixed, group=AloneGroup(), clock=ManualClock(), emit=print, events=tmp_path
    )
    other.after_save(SaveResult(saved=True, iteration=100, total_bytes=0, seconds=5.0, reason=""))
    assert fixed.paces == []
