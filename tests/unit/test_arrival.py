"""An agent's first requests: how few they are, and what becomes of an answer that is lost."""

import dataclasses

import pytest

from elastic.errors import StoreUnavailable
from elastic.events import Outcome
from elastic.rendezvous.memory import MemoryServer, MemoryStore
from elastic.rendezvous.model import MemberState
from tests.harness.agents import Job


class Recording(MemoryStore):
    """Notes each request; `loses` makes of the next transaction's answer what a lost one leaves."""

    def __init__(self, server, *, loses=lambda done: done):
        super().__init__(server)
        self.requests, self._loses = [], loses

    def grant(self, ttl_s):
        self.requests.append("grant")
        return super().grant(ttl_s)

    def keep_alive(self, lease):
        self.requests.append("keep alive")
        return super().keep_alive(lease)

    def get(self, key):
        self.requests.append("get")
        return super().get(key)

    def range(self, prefix):
        self.requests.append("range")
        return super().range(prefix)

    def transact(self, compares, *, ops):
        self.requests.append("transact")
        done = super().transact(compares, ops=ops)
        loses, self._loses = self._loses, lambda done: done
        return loses(done)


def read_lost(done):
    return dataclasses.replace(done, read={}, replaced={})


def never_answered(_done):
    raise StoreUnavailable("no answer")


@pytest.fixture
def server():
    return MemoryServer()


@pytest.fixture
def job_on(server):
    jobs, stores = [], []

    def make(**store_options):
        def store():
            stores.append(Recording(server, **store_options))
            return stores[-1]

        jobs.append(Job(store, max_nodes=2, ttl_s=60))
        return jobs[-1], stores

    yield make
    for job in jobs:
        job.close()


def test_who_follows_another_asks_for_a_lease_and_writes_once(job_on):
    job, stores = job_on()
    job.start("a", "b")
    follower = next(agent for agent in job.agents if not agent.coordinator.is_leader)
    assert stores[job.agents.index(follower)].requests == ["grant", "transact"]
    assert {member.state for member in follower.coordinator.members()} == {MemberState.JOINING}


def test_a_renewal_writes_only_what_could_not_be_written(job_on):
    job, stores = job_on()
    job.start("a", "b")
    follower = next(agent for agent in job.agents if not agent.coordinator.is_leader)
    store, registration = stores[job.agents.index(follower)], follower.coordinator._registration
    store.requests.clear()
    registration._renew()
    assert store.requests == ["keep alive"], "which generation it is in the world says"
    store.cut()
    registration.publish(exporter="here:1")
    store.heal()

    def told():
        return [m.exporter for m in follower.coordinator.members() if m.node == follower.node] == ["here:1"]

    job.until(told, what="what was owed")
    store.requests.clear()
    registration._renew()
    assert store.requests == ["keep alive"]


@pytest.mark.parametrize("loses", [read_lost, never_answered])
def test_a_job_that_was_closed_is_begun_anew_though_an_answer_is_lost(job_on, loses):
    first, _stores = job_on()
    (agent,) = first.start("a")
    agent.done()
    (end,) = first.expect_end([agent])
    assert end.outcome is Outcome.SUCCEEDED
    again, stores = job_on(loses=loses)
    second = again.add("b")
    agent.stop()
    again.expect([second], size=1, after=1)
    assert "range" in stores[-1].requests or stores[-1].requests.count("transact") > 1, "something was asked again"
