"""When a worker hangs, from what it does and how long that took before; its page; its stacks, of real processes."""

import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from elastic import stacks
from elastic.activity import SIZE_BYTES, Activity, ActivityPage, Doing, Seen, Times
from elastic.clock import SYSTEM_CLOCK, ManualClock
from elastic.events import WorkerHung
from elastic.launch.hang import Bounds, judge, limit_s
from elastic.launch.hang_watch import HangWatch

BOUNDS = Bounds(least_s=10.0, unknown_s=1000.0)


def seen(doing, *, since_s=0.0, count=5, longest_s=1.0, pid=7):
    times = tuple(Times(count=count, longest_s=longest_s) for _ in Doing)
    return Seen(pid=pid, doing=doing, since_s=since_s, times=times)


class TestLimits:
    @pytest.mark.parametrize("doing", [Doing.STEP, Doing.DATA, Doing.EVALUATION, Doing.SAVE])
    def test_what_was_seen_before_has_a_limit_of_its_own(self, doing):
        assert limit_s(seen(doing, longest_s=1.0), bounds=BOUNDS) == 10.0
        assert limit_s(seen(doing, longest_s=30.0), bounds=BOUNDS) == 150.0

    @pytest.mark.parametrize("count", [0, 1])
    def test_what_was_not_seen_often_enough_may_take_long(self, count):
        assert limit_s(seen(Doing.STEP, count=count), bounds=BOUNDS) == 1000.0

    @pytest.mark.parametrize("doing", [Doing.WAITING, Doing.STARTING, Doing.BETWEEN, Doing.FIRST, Doing.FLUSH])
    def test_what_others_decide_may_always_take_long(self, doing):
        assert limit_s(seen(doing), bounds=BOUNDS) == 1000.0


class TestJudge:
    def look(self, *workers, now_s, awake_since_s=0.0):
        return judge(workers, now_s=now_s, awake_since_s=awake_since_s, bounds=BOUNDS)

    def test_the_one_that_has_not_come_is_to_blame_and_not_those_that_wait(self):
        found = self.look(seen(Doing.WAITING, pid=1), seen(Doing.STEP, pid=2), now_s=11.0)
        assert [each.pid for each in found.hung] == [2]
        assert "step for 11.0 s, more than the limit of 10.0 s (1.0 s at most so far)" in found.hung[0].reason

    def test_until_then_it_is_looked_at_again_in_time(self):
        found = self.look(seen(Doing.STEP, since_s=5.0), now_s=11.0)
        assert (found.hung, found.until_s) == ((), 15.0)

    def test_what_was_slept_does_not_count(self):
        found = self.look(seen(Doing.STEP), now_s=500.0, awake_since_s=499.0)
        assert (found.hung, found.until_s) == ((), 509.0)

    def test_a_collective_in_which_all_wait_ends_too(self):
        assert len(self.look(seen(Doing.WAITING, pid=1), seen(Doing.WAITING, pid=2), now_s=1001.0).hung) == 2


class TestPage:
    @pytest.fixture
    def page(self):
        with tempfile.TemporaryFile() as file:
            file.truncate(SIZE_BYTES)
            page = ActivityPage(file.fileno())
            yield page
            page.close()

    def test_what_ends_is_counted_and_the_longest_fades(self, page):
        clock = ManualClock(100.0)
        activity = Activity(page, clock=clock)
        activity.begin(Doing.STEP)
        for took_s in (10.0, 1.0, 1.0):
            clock.sleep(took_s)
            activity.begin(Doing.STEP)
        found = page.seen()
        assert (found.pid, found.doing, found.since_s) == (os.getpid(), Doing.STEP, 112.0)
        assert found.times[Doing.STEP].count == 3
        assert found.times[Doing.STEP].longest_s == pytest.approx(8.1)

    def test_what_is_done_meanwhile_does_not_count_for_what_is_around_it(self, page):
        clock = ManualClock()
        activity = Activity(page, clock=clock)
        activity.begin(Doing.STEP)
        for item in activity.each([1, 2], Doing.DATA):
            assert page.seen().doing is Doing.STEP
            clock.sleep(item)
        with activity.during(Doing.WAITING):
            clock.sleep(50.0)
        assert page.seen().times[Doing.DATA].count == 3  # the end of them is waited for, too
        assert page.seen().times[Doing.WAITING].longest_s == 50.0
        assert page.seen().times[Doing.STEP].longest_s < 3.0

    def test_a_successor_has_done_nothing_of_what_its_predecessor_left_open(self, page):
        page.begin(Doing.STEP, pid=1, now_s=0.0)
        page.begin(Doing.STARTING, pid=2, now_s=1e6)
        assert page.seen().times[Doing.STEP].count == 0

    def test_without_an_agent_nothing_is_noted(self):
        activity = Activity(None)
        activity.begin(Doing.STEP)
        with activity.during(Doing.DATA):
            assert list(activity.each("ab", Doing.DATA)) == ["a", "b"]


HOLDER = """
import ctypes, os, sys
from elastic import stacks
from elastic.activity import ActivityPage, Doing
from elastic.clock import SYSTEM_CLOCK
activity, where = sys.argv[1].split(":")
def hold():
    while ctypes.PyDLL(None).sleep(60):
        pass  # a signal cuts it short
stacks.offer(where)
ActivityPage.open(activity).begin(Doing.STEP, pid=os.getpid(), now_s=SYSTEM_CLOCK.monotonic_s())
print("here", flush=True)
hold()
"""


@pytest.fixture
def watch(tmp_path):
    """A watch over one place, with limits of no time at all, and what it tells."""
    told = []
    with ExitStack() as stack:
        bounds = Bounds(least_s=0.01, unknown_s=0.01)
        made = HangWatch(
            slots=1, bounds=bounds, file=tmp_path / "a.jsonl", emit=told.append, clock=SYSTEM_CLOCK, stack=stack
        )
        made.told = told
        yield made


def test_a_process_that_holds_the_interpreters_lock_is_told_with_its_stack(watch):
    with subprocess.Popen([sys.executable, "-c", HOLDER, watch.paths], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "here\n"
            SYSTEM_CLOCK.sleep(0.05)
            hung, _ = watch.look([process.pid])
            assert set(hung) == {process.pid}
            assert process.poll() is None, "asking for its stack must not end it"
            assert watch.look([process.pid])[0] == {}, "told once"
        finally:
            process.kill()
    (event,) = watch.told
    assert isinstance(event, WorkerHung)
    text = Path(event.stacks).read_text()
    assert "in hold" in text
    assert f"pid {process.pid}: step for" in text


def test_stacks_that_no_disk_takes_are_told_and_hold_up_nobody(watch, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("elastic.launch.hang_watch._WRITTEN_WITHIN_S", 0.05)
    os.mkfifo(file := tmp_path / "a-stacks-1.txt")  # who opens it to write waits for a reader
    with subprocess.Popen([sys.executable, "-c", HOLDER, watch.paths], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "here\n"
            SYSTEM_CLOCK.sleep(0.05)
            assert set(watch.look([process.pid])[0]) == {process.pid}
        finally:
            process.kill()
    assert "does the disk stall?" in caplog.text
    assert "in hold" in caplog.text
    with file.open() as waiting:
        assert "in hold" in waiting.read()


def test_one_that_offers_no_stacks_is_not_harmed(watch):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        with tempfile.TemporaryFile() as file:
            assert "offers none" in stacks.ask(process.pid, fd=file.fileno(), clock=SYSTEM_CLOCK)
        assert process.poll() is None
        process.communicate(b"\n")
    assert process.returncode == 0


def test_others_pids_are_none_of_its_business(watch):
    watch.look([1])
    assert not watch.told
