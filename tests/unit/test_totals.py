"""Counters outlive their agent: the next one of the node, and the next leader, go on from files beside the events."""

import json
import os
import threading

import pytest

from elastic.clock import SYSTEM_CLOCK, ManualClock
from elastic.events import Cause, WorkerLost
from elastic.metrics import totals as totals_module
from elastic.metrics.fold import Metrics
from elastic.metrics.totals import Totals
from tests.harness import story
from tests.harness.scrape import samples

FAILED = ("elastic_failures_total", ("reason", "worker_signal"))
STEPS = ("elastic_steps_committed_total",)
CRASH = WorkerLost(worker_rank=0, pid=1, cause=Cause.WORKER_SIGNAL, reason="r")


class Agent:
    """Metrics and their files, driven by hand."""

    def __init__(self, directory, node, *, leads=False, period_s=60.0):
        self.leads = leads
        self.clock = ManualClock(100.0)
        self.metrics = Metrics(clock=self.clock, is_leader=lambda: self.leads)
        self.totals = Totals(
            directory,
            node=node,
            agent=f"agent-of-{node}-{id(self)}",
            period_s=period_s,
            metrics=self.metrics,
            is_leader=lambda: self.leads,
        )

    def run(self, *, steps):
        for record in [story.agent("a", at_s=100.0), *story.world("a", at_s=100.0), *story.begun("a", at_s=100.0)]:
            self.metrics.apply(record)
        for iteration in range(1, steps + 1):
            self.clock.now_s += 1
            self.metrics.apply(*story.step(iteration, "a", at_s=self.clock.now_s))

    def fails(self):
        self.metrics.apply(story.record(CRASH, at_s=self.clock.now_s))


@pytest.fixture
def place(tmp_path):
    return tmp_path / "totals"


def backdate(path, *, by_s):
    at = path.stat()
    os.utime(path, (at.st_atime, at.st_mtime - by_s))


def test_the_next_agent_of_a_node_goes_on_counting(place):
    first = Agent(place, "a")
    first.totals.take_up()
    first.fails()
    first.totals.write()
    second, other = Agent(place, "a"), Agent(place, "b")
    for agent in (second, other):
        agent.totals.take_up()
        agent.fails()
    assert (samples(second.metrics)[FAILED], samples(other.metrics)[FAILED]) == (2, 1)


def test_a_job_that_starts_again_goes_on_with_the_time_in_between(place):
    first = Agent(place, "a", leads=True)
    first.totals.take_up()
    first.run(steps=7)
    first.totals.write()
    backdate(place / "job.json", by_s=100.0)
    second = Agent(place, "b")
    second.totals.take_up()
    second.leads = True
    found = samples(second.metrics)
    assert found[STEPS] == 7
    times = {key[1][1]: value for key, value in found.items() if key[0] == "elastic_time_seconds_total" and value}
    assert times.pop("down") == pytest.approx(100.0, abs=1.0)
    assert sum(times.values()) == pytest.approx(7.0)


def counted_steps(agent):
    return agent.metrics.job_plain()["values"]["elastic_steps_committed_total"][0][1]


def test_a_newcomer_asks_the_leaders_book_once_more_in_each_generation(place):
    leader, newcomer = Agent(place, "a", leads=True), Agent(place, "b", period_s=0.01)
    leader.totals.take_up()
    newcomer.totals.start()
    try:
        for steps in (3, 5):
            leader.run(steps=steps)
            leader.totals.write()
            newcomer.totals.new_generation()
            until_s = SYSTEM_CLOCK.monotonic_s() + 10
            while counted_steps(newcomer) != counted_steps(leader):
                assert SYSTEM_CLOCK.monotonic_s() < until_s
                SYSTEM_CLOCK.sleep(0.005)
    finally:
        newcomer.totals.stop()
    assert counted_steps(newcomer) == 8


def test_the_thread_writes_what_is_noted_and_ends(place):
    agent = Agent(place, "a", leads=True)
    agent.totals.start()
    agent.run(steps=2)
    agent.totals.note()
    agent.totals.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "elastic-totals"]
    assert sorted(path.name for path in place.iterdir()) == ["job.json", "node-a.json"]
    assert ["elastic_steps_committed_total", [[[], 2.0]]] in map(
        list, json.loads((place / "job.json").read_text())["values"].items()
    )


def test_a_disk_that_does_not_answer_ends_no_agent_late(place, caplog, monkeypatch):
    monkeypatch.setattr(totals_module, "STOP_S", 0.05)
    agent, asked, may_go = Agent(place, "a"), threading.Event(), threading.Event()
    agent.totals.start()

    def hangs(path, plain):
        asked.set()
        assert may_go.wait(10)

    monkeypatch.setattr(agent.totals, "_put", hangs)
    agent.totals.note()
    assert asked.wait(10)
    agent.totals.stop()
    assert "the last counters of this node are not kept" in caplog.text
    may_go.set()
    agent.totals.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "elastic-totals"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"values": 7}', '{"values": {"elastic_failures_total": [[["x"]]]}}'])
def test_a_file_that_is_none_of_ours_is_told_and_the_count_begins_at_zero(place, text, caplog):
    place.mkdir()
    for name in ("node-a.json", "job.json"):
        (place / name).write_text(text)
    agent = Agent(place, "a")
    agent.totals.take_up()
    agent.leads = True
    assert (samples(agent.metrics)[FAILED], samples(agent.metrics)[STEPS]) == (0, 0)
    assert ("begin at zero" in caplog.text) == (text.startswith('{"'))


def test_a_directory_that_cannot_be_written_is_told_once(place, caplog):
    place.write_text("a file is in the way")
    agent = Agent(place, "a", leads=True)
    for _ in range(3):
        agent.totals.write()
    assert caplog.text.count("are not kept") == 1
