"""Two agents that were given one node name: the later has it, the earlier leaves with 76."""

import time

import pytest

from elastic.errors import ExitCode, Fenced
from elastic.rendezvous.keys import Keys
from elastic.rendezvous.memory import MemoryServer, MemoryStore
from elastic.rendezvous.naming import NodeName
from tests.harness.agents import Job


@pytest.fixture
def server():
    return MemoryServer()


@pytest.fixture
def job(server):
    job = Job(lambda: MemoryStore(server), max_nodes=3)
    yield job
    job.close()


def test_the_later_wins(server):
    keys = Keys.of(prefix="/jobs", job_id="j")
    store = MemoryStore(server)
    first, second = (NodeName(store, keys=keys, node="n/1", agent=agent) for agent in ("one", "two"))
    lease = store.grant(60)
    first.claim(lease)
    second.claim(store.grant(60))
    assert store.keep_alive(lease) == 0, "the lease of the earlier is gone"
    first.claim(store.grant(60))
    assert "n/1" in first.taken
    second.claim(store.grant(60))
    assert not second.taken
    assert store.get(keys.name("n/1")).value == "two"


def test_the_earlier_agent_leaves_with_76_and_the_later_takes_part(job):
    a, b = (job.add(node, named=True) for node in ("a", "b"))
    job.expect([a, b], size=2)
    other = job.add("a", named=True)
    job.until(lambda: a.ended is not None, what="the end of the earlier")
    assert isinstance(a.ended, Fenced)
    assert a.ended.exit_code == ExitCode.FENCED
    a.coordinator.stop()
    b.fail()
    job.expect([other, b], size=2, after=1, deadline_s=20)
    assert sorted(b.ranks) == ["a", "b"]


def test_with_a_long_lease_the_first_refused_commit_tells_the_earlier(server):
    """It would renew its lease, and find that ended, after 20 s only."""
    job = Job(lambda: MemoryStore(server), max_nodes=2, ttl_s=60)
    try:
        a, b = (job.add(node, named=True) for node in ("a", "b"))
        job.expect([a, b], size=2)
        other = job.add("a", named=True)
        keys = Keys.of(prefix=a.coordinator.options.prefix, job_id="job")
        member = keys.member(a.coordinator.identity.agent)
        job.until(lambda: MemoryStore(server).get(member) is None, what="that its lease is revoked")
        assert "the lease of this agent has ended" in a.coordinator.commit("late").reason
        job.until(lambda: a.ended is not None, what="the end of the earlier", deadline_s=5)
        assert isinstance(a.ended, Fenced)
        assert other.ended is None
    finally:
        job.close()


def test_several_agents_of_one_host_may_share_a_name_that_nobody_gave(job):
    agents = job.start("host", "host")
    assert agents[0].ranks == ["host", "host"]


def test_a_dead_agent_is_not_waited_for_by_the_one_that_takes_its_name(server):
    job = Job(lambda: MemoryStore(server), max_nodes=2, ttl_s=60)
    try:
        a, b = (job.add(node, named=True) for node in ("a", "b"))
        job.expect([a, b], size=2)
        b.kill()
        started_s = time.monotonic()
        again = job.add("b", named=True)
        a.fail()
        job.expect([a, again], size=2, after=1)
        assert time.monotonic() - started_s < 5
    finally:
        job.close()
