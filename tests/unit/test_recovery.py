"""From a fault to the next step: the watch on its own, and the agent's ears around it."""

from __future__ import annotations

import dataclasses

import pytest

from elastic.clock import ManualClock
from elastic.events import (
    Cause,
    Direction,
    EventFile,
    Notice,
    Record,
    Recovered,
    Rescaled,
    Restored,
    StepCommitted,
    encode,
    read_records,
)
from elastic.launch.observer import Observer, changes
from elastic.launch.recovery import RecoveryWatch
from elastic.metrics.fold import Metrics
from elastic.rendezvous.model import Phase, Seat, World


def committed(iteration):
    return StepCommitted(
        iteration=iteration, start=0, stop=1, ranges=(), step_samples=1, step_digest=0, run_digest=0, loss=1.0,
        world_size=1, seconds=0.1,
    )  # fmt: skip


def restored(iteration):
    return Restored(tier="disk", iteration=iteration, consumed_samples=0, seconds=0.1, reason="")


def watch_at(step):
    watch = RecoveryWatch()
    for number in range(1, step + 1):
        assert watch.committed(committed(number), generation=1, now_s=0.0) is None
    return watch


class TestWatch:
    def test_how_long_a_paused_job_rested_is_no_part_of_its_recovery(self):
        watch = watch_at(30)
        watch.fault(Cause.PAUSED, generation=1, now_s=10.0)
        watch.formed(now_s=5000.0)
        watch.restored(restored(30))
        found = watch.committed(committed(31), generation=2, now_s=5002.0)
        assert (found.cause, found.seconds, found.lost_steps) == (Cause.PAUSED, 2.0, 0)
        watch.fault(Cause.NODE_LOST, generation=2, now_s=6000.0)
        watch.formed(now_s=6001.0)
        assert watch.committed(committed(32), generation=3, now_s=6003.0).seconds == 3.0

    def test_a_fault_costs_the_time_to_the_next_step_and_what_was_not_saved(self):
        watch = watch_at(30)
        watch.fault(Cause.WORKER_SIGNAL, generation=1, now_s=10.0)
        watch.restored(restored(25))
        found = watch.committed(committed(26), generation=2, now_s=12.5)
        assert (found.cause, found.seconds, found.lost_steps) == (Cause.WORKER_SIGNAL, 2.5, 5)
        assert watch.committed(committed(27), generation=2, now_s=13.0) is None, "it is told once"

    def test_its_stages_add_up_and_one_that_was_not_seen_is_in_the_next(self):
        watch = watch_at(30)
        watch.reached("group", now_s=5.0)  # of the generation before
        watch.fault(Cause.WORKER_SIGNAL, generation=1, now_s=10.0)
        for stage, now_s in (("agree", 10.4), ("start", 10.5), ("start", 10.7), ("restore", 12.0)):
            watch.reached(stage, now_s=now_s)
        found = watch.committed(committed(26), generation=2, now_s=12.5)
        assert [stage for stage, _ in found.stages] == ["agree", "start", "restore", "first_step"]
        assert [seconds for _, seconds in found.stages] == pytest.approx([0.4, 0.3, 1.3, 0.5])
        assert sum(seconds for _, seconds in found.stages) == pytest.approx(found.seconds)

    @pytest.mark.parametrize(
        ("started", "path"), [(["refork", "reexec", "refork"], "reexec"), (["refork"] * 2, "refork"), ([], "rejoin")]
    )
    def test_it_took_the_slowest_way_in_which_a_worker_was_started(self, started, path):
        watch = watch_at(30)
        watch.started("reexec")
        watch.fault(Cause.WORKER_SIGNAL, generation=1, now_s=10.0)
        for each in started:
            watch.started(each)
        assert watch.committed(committed(31), generation=2, now_s=12.5).path == path

    def test_a_planned_end_counts_the_steps_done_until_then(self):
        watch = watch_at(30)
        watch.fault(Cause.NODE_JOINED, generation=1, now_s=10.0)
        assert watch.committed(committed(31), generation=1, now_s=10.5) is None
        assert watch.committed(committed(32), generation=1, now_s=10.7) is None
        watch.restored(restored(32))
        found = watch.committed(committed(33), generation=2, now_s=11.0)
        assert (found.seconds, found.lost_steps) == (1.0, 0)

    def test_faults_on_the_way_belong_to_the_first(self):
        watch = watch_at(30)
        watch.fault(Cause.NODE_LOST, generation=1, now_s=10.0)
        watch.restored(restored(20))
        watch.fault(Cause.WORKER_EXIT, generation=2, now_s=11.0)
        watch.restored(restored(25))
        found = watch.committed(committed(26), generation=3, now_s=15.0)
        assert (found.cause, found.seconds, found.lost_steps) == (Cause.NODE_LOST, 5.0, 5)

    def test_a_fault_before_any_step_loses_none(self):
        watch = RecoveryWatch()
        watch.fault(Cause.WORKER_EXIT, generation=1, now_s=1.0)
        watch.restored(restored(0))
        assert watch.committed(committed(1), generation=2, now_s=2.0).lost_steps == 0

    def test_without_news_of_the_restore_the_step_itself_tells(self):
        watch = watch_at(30)
        watch.fault(Cause.NODE_LOST, generation=1, now_s=1.0)
        assert watch.committed(committed(28), generation=2, now_s=2.0).lost_steps == 3

    def test_workers_of_a_node_need_not_speak_in_step(self):
        watch = RecoveryWatch()
        for number in (1, 1, 2, 3, 2, 3):
            watch.committed(committed(number), generation=1, now_s=0.0)
        assert (watch.step, watch.committed_steps) == (3, 3)
        watch.fault(Cause.NODE_JOINED, generation=1, now_s=1.0)
        for number in (5, 4):
            watch.committed(committed(number), generation=1, now_s=1.0)
        watch.restored(restored(5))
        assert watch.committed(committed(6), generation=2, now_s=2.0).lost_steps == 0

    def test_a_newer_generation_may_stand_further_back(self):
        watch = watch_at(30)
        watch.committed(committed(26), generation=2, now_s=0.0)
        assert (watch.step, watch.committed_steps) == (26, 31)
        watch.committed(committed(31), generation=1, now_s=0.0)
        assert (watch.step, watch.committed_steps) == (26, 31), "a late word of the old one says nothing"


def world(*agents, generation=1, slots=1, cause=Cause.START):
    seats = tuple(
        Seat(agent=a, node=a, address="h", probe_port=1, slots=slots, group_rank=n, base_rank=n * slots)
        for n, a in enumerate(agents)
    )
    return World(generation=generation, phase=Phase.FORMED, seats=seats, store_address="h", store_port=1, cause=cause,
                 reason="")  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "direction"),
    [("abc", "ab", Direction.DOWN), ("ab", "abc", Direction.UP), ("ab", "ac", Direction.SAME), ("ab", "ba", None)],
)
def test_changes(before, after, direction):
    found = changes(world(*before, slots=2), world(*after, slots=2, generation=2, cause=Cause.NODE_LOST))
    if direction is None:
        assert found == []
    else:
        size = (2 * len(before), 2 * len(after))
        expected = Rescaled(direction=direction, cause=Cause.NODE_LOST, old_world_size=size[0], new_world_size=size[1])
        assert found == [expected]


class TestObserver:
    @pytest.fixture
    def make(self, tmp_path):
        made = []

        def make(*, leader):
            file = EventFile(tmp_path / "events" / "n.jsonl")
            clock = ManualClock()
            observer = Observer(
                node="n", file=file, metrics=Metrics(clock=clock), clock=clock, is_leader=lambda: leader
            )
            made.append(observer)
            return observer, clock

        yield make
        for observer in made:
            observer.close()

    def say(self, observer, event, *, generation):
        observer.worker_said(encode(Record(time_s=0.0, node="n", rank=0, generation=generation, event=event)))

    @pytest.mark.parametrize("leader", [True, False])
    def test_only_the_leader_tells_what_concerns_all(self, make, leader, tmp_path):
        observer, clock = make(leader=leader)
        observer.new_generation(world("a", "b"), previous=None)
        self.say(observer, committed(1), generation=1)
        assert (observer.step, observer.committed_steps) == (1, 1)
        clock.now_s = 5.0
        observer.fault(Cause.NODE_LOST)
        observer.new_generation(world("a", generation=2), previous=world("a", "b"))
        self.say(observer, restored(1), generation=2)
        clock.now_s = 6.5
        self.say(observer, committed(2), generation=2)
        events = [(type(r.event), r.generation, r.rank) for r in read_records(tmp_path / "events")]
        assert events == ([(Rescaled, 2, None), (Recovered, 2, None)] if leader else [])

    def test_a_kind_of_event_that_it_does_not_know_is_passed_over(self, make):
        observer, _ = make(leader=True)
        observer.worker_said('{"time_s":1,"kind":"from_the_future","node":"n","rank":0,"generation":1}')

    def test_a_full_disk_is_told_and_survived(self, make, caplog):
        observer, _ = make(leader=True)

        class Full:
            def append(self, record):
                raise OSError(28, "No space left on device")

            def close(self):
                """Nothing is open."""

        observer._file.close()
        observer._file = Full()
        observer.emit(Notice(text="x"))
        assert "No space left" in caplog.text


def test_the_worlds_of_these_tests_are_real_ones():
    assert dataclasses.replace(world("a", "b", slots=2)).world_size == 4
