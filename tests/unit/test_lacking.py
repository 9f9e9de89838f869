"""Agents whose workers find nothing of what was committed, as they wait for others together with the leader."""

import pytest

from elastic.errors import ExitCode, Lack
from elastic.events import Cause
from elastic.rendezvous.model import FailureReport, World


def lacking(what: Lack) -> FailureReport:
    return FailureReport(
        cause=Cause.WORKER_EXIT, rank=0, step=0, signature="x", exit_code=ExitCode.USAGE, lacks=what, text="not here"
    )


def present(agent) -> World:
    world = agent.coordinator.world()
    assert world is not None
    return world


# An agent gives up when too few come within its own limit: that must not cut the wait short.
SHORT = {"max_nodes": 3, "ttl_s": 60, "first_wait_s": 0.1, "holders_wait_s": 0.8, "join_timeout_s": 0.4}


def test_nobody_comes_who_holds_any_of_it(make_job):
    job = make_job(**SHORT)
    a = job.add("a")
    job.expect([a], size=1)
    a.fail(lacking(Lack.ALL))
    (end,) = job.expect_end([a])
    assert (end.exit_code, end.text) == (ExitCode.USAGE, "not here")


def test_nobody_comes_who_holds_the_newest(make_job):
    job = make_job(**SHORT)
    a = job.add("a")
    job.expect([a], size=1)
    assert not present(a).goes_back
    a.fail(lacking(Lack.NEWEST))
    job.expect([a], size=1, after=1)
    assert present(a).goes_back
    b = job.add("b")
    job.expect([a, b], size=2, after=2)
    assert not present(a).goes_back, "to go back is committed, so that nobody else is to do so"


@pytest.mark.parametrize("what", [Lack.ALL, Lack.NEWEST])
def test_somebody_comes(make_job, what):
    job = make_job(**SHORT | {"holders_wait_s": 60})
    a = job.add("a")
    job.expect([a], size=1)
    a.fail(lacking(what))
    b = job.add("b")
    job.expect([a, b], size=2, after=1)
    assert not present(a).goes_back
