"""The lease page: what it says, to whom, and what a worker does about it."""

import pytest

from elastic.checkpoint.layout import TRACKER, CommitRecord
from elastic.clock import ManualClock
from elastic.events import Fencing
from elastic.lease import AGENT, KEEPER, LeasePage, certain_until_s, standing
from elastic.link import Answer, NoLink
from elastic.session.committer import AgentCommitter, choose_committer
from elastic.world import LEASE_PAGE, World
from tests.harness.checkpoints import Bench, make_run, meta

RECORD = CommitRecord(iteration=25, lineage="l", manifest_digest="d", generation=3, consumed_samples=100)


@pytest.fixture
def page():
    page = LeasePage.create()
    yield page
    page.remove()
    assert not page.path.exists()


class Agreeing(NoLink):
    """An agent that grants everything."""

    present = True

    def __init__(self):
        self.asked = 0

    def ask(self, what, *, value=None):
        self.asked += 1
        return Answer(granted=True, reason="yes")


@pytest.mark.parametrize(
    ("newest", "valid_until_s", "holds", "stale", "word"),
    [
        (3, 12.0, True, False, "2.0 s more"),
        (3, 10.0, False, False, "unconfirmed for 0.0 s"),
        (3, 0.0, False, False, "since it ended"),
        (4, 12.0, False, True, "knows of 4"),
        (0, 12.0, True, False, "2.0 s more"),
    ],
)
def test_what_the_facts_mean(newest, valid_until_s, holds, stale, word):
    found = standing(generation=3, newest=newest, valid_until_s=valid_until_s, now_s=10.0)
    assert (found.holds, found.stale) == (holds, stale)
    assert word in found.reason


def test_a_renewal_is_certain_for_less_than_was_granted_counted_from_its_sending():
    assert certain_until_s(sent_s=100.0, granted_s=5.0) == pytest.approx(104.5)


def test_all_processes_see_one_page_and_the_later_word_of_the_two_holds(page):
    other = LeasePage(page.path)
    assert (other.generation, other.valid_until_s) == (0, 0.0)
    page.generation = 7
    page.extend(AGENT, until_s=10.5)
    other.extend(KEEPER, until_s=12.25)
    assert (other.generation, page.valid_until_s) == (7, 12.25)
    other.end()
    assert page.valid_until_s == 0.0
    assert page.path.stat().st_mode & 0o077 == 0
    other.close()


def test_an_unconfirmed_worker_neither_asks_nor_publishes(page):
    clock, link = ManualClock(100.0), Agreeing()
    committer = AgentCommitter(link, generation=3, page=page, clock=clock)
    page.generation = 3
    page.extend(AGENT, until_s=110.0)
    assert committer.commit(RECORD).granted
    assert committer.fence() is None
    clock.sleep(60)
    began_s = clock.monotonic_s()
    verdict = committer.commit(RECORD)
    assert (verdict.granted, verdict.stale, link.asked) == (False, False, 1)
    assert "unconfirmed for 50.0 s" in verdict.reason
    assert clock.monotonic_s() == began_s, "nobody waits for a store that has been away for long"


def test_a_late_renewal_is_waited_for(page):
    class Renewing(ManualClock):
        def sleep(self, seconds):
            super().sleep(seconds)
            page.extend(KEEPER, until_s=200.0)

    page.generation = 3
    page.extend(AGENT, until_s=99.9)
    committer = AgentCommitter(Agreeing(), generation=3, page=page, clock=Renewing(100.0))
    assert committer.commit(RECORD).granted


def test_a_worker_of_an_older_generation_is_told_that_it_is_stale(page):
    page.generation = 4
    page.extend(AGENT, until_s=200.0)
    verdict = AgentCommitter(Agreeing(), generation=3, page=page, clock=ManualClock(100.0)).commit(RECORD)
    assert (verdict.granted, verdict.stale) == (False, True)


def test_the_page_is_found_through_the_environment(page):
    world = World.from_environ({"RANK": "0", "WORLD_SIZE": "1", LEASE_PAGE: str(page.path), "ELASTIC_GENERATION": "3"})
    committer = choose_committer(Agreeing(), world=world, save_path="", clock=ManualClock(5.0))
    assert "unconfirmed" in committer.fence()


def test_a_worker_paused_between_commit_and_tracker_leaves_the_tracker_alone(tmp_path):
    bench, run = Bench(tmp_path), make_run()
    assert bench.manager().save(run.step(10).tracked, meta(10)).saved
    bench.committer.fenced = "this node's lease is unconfirmed for 7.0 s"
    assert bench.manager().save(run.step(10).tracked, meta(20)).saved, "it was committed"
    assert (tmp_path / TRACKER).read_text().strip() == "10"
    (fencing,) = [event for event in bench.events if isinstance(event, Fencing)]
    assert "tracker was left alone: this node's lease is unconfirmed" in fencing.reason
