"""Scale, pause and resume on whole coordinators, and the commands that ask for them."""

import time

import pytest

from elastic.cli import build_parser, control_command
from elastic.errors import UsageError
from elastic.events import Cause, Outcome, WishHeard
from elastic.rendezvous.control import ask
from elastic.rendezvous.keys import Keys
from elastic.rendezvous.wish import paused, resumed, scaled


def wish(job, change, **fields):
    agent = job.agents[0]
    options = agent.coordinator.options
    keys = Keys.of(prefix=options.prefix, job_id=options.job_id)
    ask(agent.store, keys=keys, change=lambda found: change(found, reason="asked by ann", **fields))


def heard(*agents):
    return [event.what for agent in agents for event in agent.events if isinstance(event, WishHeard)]


def test_the_last_ranks_of_a_job_that_is_made_smaller_wait_and_come_back(make_job):
    job = make_job(max_nodes=3)
    a, b, c = job.start("a", "b", "c")
    wish(job, scaled, min_nodes=1, max_nodes=2)
    job.expect([a, b], size=2, after=1)
    assert a.ranks == ["a", "b"]
    assert [(each.regroups[-1].cause, each.regroups[-1].planned) for each in (a, c)] == [(Cause.SCALED, True)] * 2
    assert [each.regroups[-1].ends for each in (a, b, c)] == [False, False, True], "only who goes ends its workers"
    wish(job, scaled, min_nodes=1, max_nodes=3)
    job.expect([a, b, c], size=3, after=2)
    assert c.ranks == ["a", "b", "c"]
    assert heard(a, b, c) == ["scale", "scale"]


def test_a_job_that_is_to_be_larger_than_it_is_saves_and_waits(make_job):
    job = make_job(max_nodes=2)
    a, b = job.start("a", "b")
    wish(job, scaled, min_nodes=3, max_nodes=3)
    job.until(lambda: a.regroups and b.regroups, what="the word")
    assert [(each.regroups[-1].cause, each.regroups[-1].ends) for each in (a, b)] == [(Cause.SCALED, True)] * 2
    c = job.add("c")
    job.expect([a, b, c], size=3, after=1)


def test_who_waits_in_vain_names_the_number_that_a_person_wanted(make_job):
    job = make_job(max_nodes=2, join_timeout_s=0.5)
    a, b = job.start("a", "b")
    wish(job, scaled, min_nodes=3, max_nodes=3)
    job.until(lambda: a.ended is not None and b.ended is not None, what="the timeout")
    for agent in (a, b):
        assert "of at least 3 nodes came within 0.5 s" in str(agent.ended)
        assert "`elastic scale MIN:MAX`, which set this minimum" in str(agent.ended)


def test_a_paused_job_waits_longer_than_for_nodes_and_goes_on(make_job):
    job = make_job(max_nodes=2, join_timeout_s=0.3)
    a, b = job.start("a", "b")
    wish(job, paused)
    job.until(lambda: a.regroups and b.regroups, what="the pause")
    assert a.regroups[-1].cause is Cause.PAUSED
    assert a.regroups[-1].ends
    c = job.add("c")
    over_s = time.monotonic() + 2 * job.options.join_timeout_s
    job.until(lambda: time.monotonic() > over_s, what="the time in which nodes must come")
    assert [(each.generation, each.ended) for each in (a, b, c)] == [(1, None), (1, None), (0, None)]
    wish(job, resumed)
    job.expect([a, b], size=2, after=1)
    assert a.memberships[-1].world.reason.startswith("resumed (asked by ann)")
    assert a.memberships[-1].seconds < job.options.join_timeout_s, "the rest is not counted"
    assert heard(a, b) == ["pause", "resume"]
    assert c.generation == 0


def test_a_wish_ends_with_the_job(make_job):
    job = make_job(max_nodes=2)
    a, b = job.start("a", "b")
    wish(job, scaled, min_nodes=1, max_nodes=2)
    a.done(), b.done()
    assert {end.outcome for end in job.expect_end([a, b])} == {Outcome.SUCCEEDED}
    keys = Keys.of(prefix=a.coordinator.options.prefix, job_id=a.coordinator.options.job_id)
    assert a.store.get(keys.wish) is None


@pytest.mark.parametrize(("text", "nodes"), [("1:4", (1, 4)), ("3", (3, 3)), ("2:2", (2, 2))])
def test_nodes_are_told_as_torchrun_is(text, nodes):
    assert control_command.nodes_of(text) == nodes


@pytest.mark.parametrize("text", ["", "0:2", "4:1", "1:", "a:b", "1:2:3", "-1:2", "1:1000000"])
def test_other_numbers_of_nodes_are_refused(text):
    with pytest.raises(UsageError, match="is not MIN:MAX"):
        control_command.nodes_of(text)


@pytest.mark.parametrize("command", ["scale 1:2", "pause", "resume"])
def test_a_command_wants_to_know_which_job(command):
    with pytest.raises(UsageError, match="--rdzv-id"):
        build_parser().parse_args(command.split())
