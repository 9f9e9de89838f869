"""Coordinators on a real etcd: the ways in which a generation ends, and what etcd itself may do meanwhile."""

import threading
import time

import pytest

from elastic.events import Cause, Outcome
from elastic.local.etcd import EtcdServer
from elastic.rendezvous.etcd import EtcdStore
from elastic.rendezvous.options import RendezvousOptions
from tests.harness.agents import Job

pytestmark = pytest.mark.integration


@pytest.fixture
def own_etcd(tmp_path):
    with EtcdServer(tmp_path / "etcd") as server:
        yield server


@pytest.fixture
def make_job(request):
    jobs = []

    def make(server, **options):
        place = RendezvousOptions(
            job_id="none", min_nodes=1, max_nodes=1, endpoints=(server.endpoint,), call_timeout_s=2
        )
        jobs.append(Job(lambda: EtcdStore(place), job_id=request.node.name, **options))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()


def test_worlds_3_2_3_1_in_under_a_second_each(etcd, make_job):
    job = make_job(etcd, max_nodes=3, ttl_s=60)
    a, b, c = job.start("a", "b", "c")
    seconds = []

    def after(action, agents, size):
        started_s = time.monotonic()
        action()
        job.expect(agents, size=size, after=a.generation)
        seconds.append(time.monotonic() - started_s)

    b.kill()
    after(lambda: [a.fail(), c.fail()], [a, c], 2)
    assert a.ranks == ["a", "c"]
    d = []
    after(lambda: d.append(job.add("d")), [a, c], 3)
    job.expect([a, c, d[0]], size=3)
    c.kill()
    d[0].kill()
    after(a.fail, [a], 1)
    assert a.memberships[-1].world.cause is Cause.NODE_LOST
    a.done()
    (closed,) = job.expect_end([a])
    assert (closed.outcome, closed.exit_code) == (Outcome.SUCCEEDED, 0)
    assert max(seconds) < 2, seconds


def test_the_leader_and_rank_0_is_killed(etcd, make_job):
    job = make_job(etcd, max_nodes=3, ttl_s=60)
    a, b, c = job.start("a", "b", "c")
    assert a.coordinator.is_leader
    a.kill()
    b.fail()
    c.fail()
    job.expect([b, c], size=2, after=1)
    assert b.ranks == ["b", "c"]


def test_etcd_killed_and_started_again_leaves_the_generation_as_it_is(own_etcd, make_job):
    job = make_job(own_etcd, max_nodes=3)
    a, b = job.start("a", "b")
    own_etcd.kill()
    assert a.coordinator.regroup() is None
    own_etcd.start()
    assert a.coordinator.commit("one").granted
    c = job.add("c")
    job.expect([a, b, c], size=3, after=1, deadline_s=20)
    assert [regroup.planned for regroup in a.regroups] == [True]


def test_etcd_frozen_for_longer_than_every_lease_leaves_the_generation_as_it_is(own_etcd, make_job):
    job = make_job(own_etcd, max_nodes=3)
    a, b = job.start("a", "b")
    leases = [agent.coordinator.lease for agent in (a, b)]
    own_etcd.pause()
    threading.Event().wait(3.5)  # the fault's own length: longer than a lease of 2 s
    own_etcd.resume()
    c = job.add("c")
    job.expect([a, b, c], size=3, after=1, deadline_s=20)
    assert [regroup.planned for regroup in a.regroups] == [True], a.regroups
    assert all(old != agent.coordinator.lease for old, agent in zip(leases, (a, b), strict=True)), "leases had ended"
