"""A job of the same name with another etcd: who comes to its save path waits until it is silent, or goes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from elastic.checkpoint.launches import BEAT_S, SILENT_S, Mark, write_mark
from elastic.checkpoint.storage import PosixStorage
from elastic.clock import ManualClock
from elastic.config.load import resolve
from elastic.errors import RunMismatch
from elastic.launch.tenure import launch_in

STORAGE = PosixStorage()


def launched(root):
    settings = resolve(["--save-path", str(root)], environ={}, strict=True).settings
    return launch_in(settings, run_id="x", clock=ManualClock())


class Etcd:
    """A coordinator's answers. `knows`: whether this etcd knows of the run."""

    def __init__(self, *members):
        self.knows, self.asked, self.agents = False, 0, members

    def world(self):
        self.asked += 1

    def members(self):
        return [SimpleNamespace(agent=agent) for agent in self.agents]

    def commit_record(self):
        return "a record" if self.knows else None


class Working(ManualClock):
    """Signs of life by another job while one waits: `beats` of them."""

    def __init__(self, root, *, beats, agent="theirs"):
        super().__init__()
        self.root, self.beats, self.given, self.agent = str(root), beats, 3, agent

    def sleep(self, seconds):
        super().sleep(seconds)
        if self.given < 3 + self.beats and self.now_s > BEAT_S * (self.given - 2):
            self.given += 1
            write_mark(self.root, Mark(launch="x", agent=self.agent, beat=self.given), storage=STORAGE)


@pytest.mark.parametrize(
    ("beats", "knows", "over", "waits_s"),
    [(0, False, False, SILENT_S), (1, False, False, SILENT_S + BEAT_S), (9, True, False, 0), (9, False, True, 0)],
    ids=["silent", "one that was on its way", "known", "over"],
)
def test_where_the_run_is_unknown_to_etcd_one_waits_until_nobody_works(tmp_path, beats, knows, over, waits_s):
    write_mark(str(tmp_path), Mark(launch="x", agent="theirs", beat=3, over=over), storage=STORAGE)
    launch = launched(tmp_path)
    clock, etcd = Working(tmp_path, beats=beats), Etcd()
    etcd.knows = knows
    launch.await_silence(coordinator=etcd, check=lambda: None, clock=clock)
    assert waits_s <= clock.now_s <= waits_s + 1


def test_who_finds_a_job_of_its_name_with_another_etcd_at_work_goes_and_disturbs_nobody(tmp_path):
    write_mark(str(tmp_path), Mark(launch="x", agent="theirs", beat=3), storage=STORAGE)
    launch = launched(tmp_path)
    clock, checked = Working(tmp_path, beats=9), []
    with pytest.raises(RunMismatch, match="agent theirs gives signs of life there"):
        launch.await_silence(coordinator=Etcd(), check=lambda: checked.append(1), clock=clock)
    assert clock.now_s < 3 * BEAT_S
    assert checked, "a signal ends the wait"


@pytest.mark.parametrize("leads", ["theirs", "new"], ids=["from the start", "after a launch that was killed"])
def test_a_member_of_the_same_etcd_is_no_stranger(tmp_path, leads):
    """Where nodes wait for each other, and the first of them gives signs of life: no world is there yet."""
    write_mark(str(tmp_path), Mark(launch="x", agent="theirs", beat=3), storage=STORAGE)
    launch = launched(tmp_path)
    clock = Working(tmp_path, beats=9, agent=leads)
    launch.await_silence(coordinator=Etcd("me", leads), check=lambda: None, clock=clock)
    assert clock.now_s <= (0 if leads == "theirs" else 2 * BEAT_S)
