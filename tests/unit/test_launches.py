"""Launches: a run started again under another id goes on where the last launch ended; of two at once one is refused."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from itertools import count

import pytest

from elastic.checkpoint.launches import BEAT_S, SILENT_S, Mark, Turn, await_turn, judge, read_mark, write_mark
from elastic.checkpoint.layout import LAUNCH
from elastic.checkpoint.seams import LockCommitter, refuse_locked
from elastic.checkpoint.storage import PosixStorage
from elastic.clock import ManualClock
from elastic.config.load import resolve
from elastic.errors import CheckpointError, Fenced, RunMismatch, StoreUnavailable, UsageError
from elastic.launch.tenure import Tenure, launch_in
from elastic.rendezvous.model import MemberState

STORAGE = PosixStorage()
OLD = Mark(launch="old", agent="a", beat=3)


@pytest.mark.parametrize(
    ("mark", "waited_s", "still_s", "turn"),
    [
        (None, 0, 0, Turn.GO),
        (Mark(launch="new", agent="b", beat=1), 0, 0, Turn.GO),
        (Mark(launch="old", agent="a", beat=1, over=True), 0, 0, Turn.GO),
        (OLD, 0, 0, Turn.WAIT),
        (OLD, SILENT_S - 1, SILENT_S - 1, Turn.WAIT),
        (OLD, SILENT_S, SILENT_S, Turn.GO),
        (OLD, SILENT_S + 1, 1, Turn.REFUSED),
        (OLD, SILENT_S + 10, 11, Turn.WAIT),  # its last sign came before the wait was over: perhaps it just ended
        (OLD, SILENT_S + 20, SILENT_S, Turn.GO),
    ],
)
def test_whose_turn_it_is(mark, waited_s, still_s, turn):
    assert judge(mark, launch="new", waited_s=waited_s, still_s=still_s).turn is turn


class Beating(ManualClock):
    """The old launch gives a sign of life every `BEAT_S`, until `ends_s`."""

    def __init__(self, root, *, ends_s, over=False):
        super().__init__()
        self._root, self._ends_s, self._over, self._beats = root, ends_s, over, count(10)

    def sleep(self, seconds):
        super().sleep(seconds)
        if self.now_s < self._ends_s and self.now_s % BEAT_S == 0:
            write_mark(self._root, Mark(launch="old", agent="a", beat=next(self._beats)), storage=STORAGE)
        elif self.now_s == self._ends_s and self._over:
            write_mark(self._root, Mark(launch="old", agent="a", beat=1, over=True), storage=STORAGE)


def turn(root, clock):
    told = []
    found = await_turn(root, launch="new", storage=STORAGE, clock=clock, tell=told.append)
    return found, told


def test_one_that_ended_in_order_is_followed_at_once(tmp_path):
    over = Mark(launch="old", agent="a", beat=4, over=True)
    write_mark(str(tmp_path), over, storage=STORAGE)
    clock = ManualClock()
    assert turn(str(tmp_path), clock) == (over, [f"launch 'old' has ended: the run in {tmp_path} goes on from there"])
    assert clock.now_s == 0


@pytest.mark.parametrize(
    ("ends_s", "over", "within_s"), [(12, True, 12), (12, False, 10 + SILENT_S), (0, False, SILENT_S)]
)
def test_one_that_ends_or_falls_silent_meanwhile_is_followed(tmp_path, ends_s, over, within_s):
    write_mark(str(tmp_path), OLD, storage=STORAGE)
    clock = Beating(str(tmp_path), ends_s=ends_s, over=over)
    found, told = turn(str(tmp_path), clock)
    assert found.launch == "old"
    assert clock.now_s == within_s
    assert len(told) == 2
    assert "may be at work" in told[0]


def test_one_that_stays_at_work_is_not_followed(tmp_path):
    write_mark(str(tmp_path), OLD, storage=STORAGE)
    clock = Beating(str(tmp_path), ends_s=10**6)
    with pytest.raises(
        RunMismatch, match=r"in use: launch 'old' is at work.*--rdzv-id=old.*another.*save_path"
    ) as caught:
        turn(str(tmp_path), clock)
    assert caught.value.exit_code == 64
    assert clock.now_s <= SILENT_S + BEAT_S


@pytest.mark.parametrize("text", ["", "[]", "rubbish", '{"launch": 3}'])
def test_a_mark_that_cannot_be_understood_is_somebody_s_who_falls_silent(tmp_path, text):
    (tmp_path / LAUNCH).write_text(text)
    clock = ManualClock()
    assert turn(str(tmp_path), clock)[0].launch == "(unreadable)"
    assert clock.now_s == SILENT_S


def test_a_save_path_that_cannot_be_read_now_is_told(tmp_path):
    class Away(PosixStorage):
        def size_bytes(self, path):
            raise OSError(5, "Input/output error")

    with pytest.raises(CheckpointError, match=r"cannot be looked for.*Input/output"):
        await_turn(str(tmp_path), launch="new", storage=Away(), clock=ManualClock(), tell=print)


def test_who_trains_without_etcd_holds_a_lock_that_agents_respect(tmp_path):
    refuse_locked(str(tmp_path))
    held = LockCommitter(str(tmp_path))
    with pytest.raises(UsageError, match="in use"):
        refuse_locked(str(tmp_path))
    held.close()
    refuse_locked(str(tmp_path))


class Job:
    """Agents' holds on one save path, beaten by hand."""

    def __init__(self, root):
        self.root, self.leads, self.others, self.events, self.woken = str(root), True, False, [], 0

    def tenure(self, launch, agent, *, found=None, storage=STORAGE, members=("a", "b", "y", "z"), seated=()):
        return Tenure(
            self.root, launch=launch, agent=agent, found=found, storage=storage, leads=lambda: self.leads,
            members=lambda: self._members(members), seated=lambda: seated, emit=self.events.append, wake=self._wake,
        )  # fmt: skip

    def mark(self):
        return read_mark(self.root, storage=STORAGE)

    def _members(self, agents):
        if self.others is None:
            raise StoreUnavailable("etcd is away")
        return dict.fromkeys(agents, MemberState.IDLE if self.others else MemberState.LEAVING)

    def _wake(self):
        self.woken += 1


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path)


def test_only_who_leads_or_led_last_gives_signs(job):
    one, other = job.tenure("x", "a"), job.tenure("x", "b")
    job.leads = False
    one.beat()
    assert job.mark() is None
    job.leads = True
    one.beat()
    job.leads = False  # as when etcd is away: training goes on
    one.beat()
    assert job.mark() == Mark(launch="x", agent="a", beat=2)
    job.leads = True
    other.beat()
    job.leads = False
    one.beat()
    assert job.mark() == Mark(launch="x", agent="b", beat=1)
    assert job.events == []


def test_taking_over_is_an_event_and_puts_an_end_to_who_was_asleep(job):
    sleeper = job.tenure("old", "a")
    sleeper.beat()
    follower = job.tenure("new", "b", found=job.mark())
    follower.beat()
    assert [event.text for event in job.events] == ["launch 'new' goes on where 'old' was"]
    assert job.woken == 0
    sleeper.beat()
    assert job.woken == 1
    with pytest.raises(Fenced, match="in the hands of launch 'new'") as caught:
        sleeper.check()
    assert caught.value.exit_code == 76
    follower.check()
    assert job.mark().launch == "new"


def test_a_mark_that_is_damaged_takes_nothing_from_who_is_at_work(job, tmp_path, caplog):
    held = job.tenure("x", "a")
    held.beat()
    (tmp_path / LAUNCH).write_text("garbage")
    assert held.lost() == ""
    held.beat()
    held.check()
    assert job.mark() == Mark(launch="x", agent="a", beat=2)
    assert "could not be read, and is written anew" in caplog.text
    assert job.woken == 0


def test_nothing_of_who_was_asleep_is_published_before_it_has_looked(job):
    sleeper = job.tenure("old", "a")
    sleeper.beat()
    assert sleeper.lost() == ""
    write_mark(job.root, Mark(launch="new", agent="b", beat=1), storage=STORAGE)
    assert "launch 'new'" in sleeper.lost()


def test_of_two_that_take_over_at_the_same_moment_one_stays(job):
    write_mark(job.root, OLD, storage=STORAGE)
    first, second = (job.tenure(name, name, found=OLD) for name in ("y", "z"))
    first.beat()
    second.beat()
    with pytest.raises(Fenced):
        second.check()
    first.beat()
    first.check()


@pytest.mark.parametrize(("others", "over"), [(False, True), (True, False), (None, False)], ids=["last", "one", "away"])
def test_the_last_one_to_leave_says_that_it_is_over(job, others, over):
    tenure = job.tenure("x", "a")
    with ExitStack() as stack:
        tenure.start(stack)
        tenure.beat()
        job.others = others
    assert job.mark().over is over


def test_who_did_not_write_the_mark_does_not_end_it(job):
    with ExitStack() as stack:
        job.leads = False
        job.tenure("x", "b").start(stack)
        write_mark(job.root, Mark(launch="x", agent="a", beat=1), storage=STORAGE)
    assert not job.mark().over


def beat_in_turns(one, other, times):
    for _ in range(times):
        one.beat()
        other.beat()


def test_of_two_jobs_of_one_name_with_an_etcd_each_the_younger_ends(job):
    older, younger = job.tenure("x", "a"), job.tenure("x", "stranger", members=["stranger"])
    for _ in range(5):
        older.beat()
    beat_in_turns(younger, older, 3)
    assert job.woken == 0, "one sign may have been on its way"
    beat_in_turns(younger, older, 1)
    assert job.woken == 1
    with pytest.raises(RunMismatch, match=r"another job 'x' trains into .*Name the same endpoints") as caught:
        younger.check()
    assert caught.value.exit_code == 64
    assert "another etcd" in younger.lost()
    beat_in_turns(older, older, 3)
    older.check()


@pytest.mark.parametrize("why", ["members", "seats", "away", "led"])
def test_agents_of_one_job_never_take_each_other_for_strangers(job, why):
    """A seat counts where its key is gone: with a long lease it may be a while until its agent knows that."""
    members = ["a", "c"] if why == "members" else ["nobody"]
    seated = ["a", "c"] if why == "seats" else []
    one, other = (job.tenure("x", agent, members=members, seated=seated) for agent in ("a", "c"))
    if why == "away":
        job.others = None
    beat_in_turns(one, other, 2)
    job.leads = why != "led"
    beat_in_turns(one, other, 10)
    one.check()
    other.check()


def test_a_disk_that_is_away_for_a_while_ends_nobody(job, caplog):
    class Away(PosixStorage):
        def replace(self, path, data):
            raise OSError(28, "No space left on device")

    tenure = job.tenure("x", "a", storage=Away())
    tenure.beat()
    tenure.beat()
    assert caplog.text.count("cannot be renewed") <= 1
    tenure.check()
    assert tenure.lost() == ""


def test_a_disk_that_stalls_lets_nothing_be_committed_and_holds_up_nobody(job, monkeypatch):
    gate, asked = threading.Event(), []

    class Stalled(PosixStorage):
        def read(self, path):
            asked.append(path)
            assert gate.wait(30)
            return super().read(path)

    monkeypatch.setattr("elastic.launch.tenure._ANSWER_S", 0.05)
    job.tenure("x", "a").beat()
    tenure = job.tenure("x", "a", storage=Stalled())
    with pytest.raises(StoreUnavailable, match="does the disk stall"):
        tenure.lost()
    assert asked
    gate.set()
    assert tenure.lost() == ""


def settings_for(root, *, scope="auto"):
    return resolve(["--save-path", str(root), "--checkpoint.save_path_scope", scope], environ={}, strict=True).settings


def test_a_run_keeps_the_name_of_its_first_launch(tmp_path):
    first, other = (launch_in(settings_for(tmp_path), run_id=name, clock=ManualClock()) for name in ("one", "two"))
    assert (first.job_id, first.name) == ("one", "one")
    assert (other.job_id, other.name) == ("one", "two")
    unnamed = launch_in(settings_for(tmp_path), run_id="none", clock=ManualClock())
    assert (unnamed.job_id, unnamed.name) == ("one", "one")


def test_private_directories_cannot_tell_who_is_at_work_so_the_id_must_stay(tmp_path):
    assert not launch_in(settings_for(tmp_path, scope="private"), run_id="one", clock=ManualClock()).shared
    with pytest.raises(RunMismatch, match="--rdzv-id=one"):
        launch_in(settings_for(tmp_path, scope="private"), run_id="two", clock=ManualClock())
