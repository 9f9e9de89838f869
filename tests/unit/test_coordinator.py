"""Several coordinators in one process on the memory store: every way in which a generation begins and ends."""

import dataclasses
import time

from elastic.errors import Preempted
from elastic.events import Cause, NodeLost, Outcome
from elastic.rendezvous.lost_world import restorable
from elastic.rendezvous.model import FailureReport


def test_three_start_in_natural_order(make_job):
    job = make_job(max_nodes=3)
    agents = job.start("node10", "node2", "node1")
    assert agents[0].ranks == ["node1", "node2", "node10"]
    membership = agents[2].memberships[0]
    assert membership.seat.group_rank == 0
    assert membership.store.is_open
    assert membership.store_port == membership.store.port
    assert [agent.memberships[0].store for agent in agents[:2]] == [None, None]
    assert sum(agent.coordinator.is_leader for agent in agents) == 1
    assert agents[0].coordinator.regroup() is None


def test_a_killed_node_is_evicted_long_before_its_lease_ends(make_job):
    job = make_job(max_nodes=3, ttl_s=60)
    a, b, c = job.start("a", "b", "c")
    c.kill()
    started_s = time.monotonic()
    a.fail()
    b.fail()
    job.expect([a, b], size=2, after=1)
    assert time.monotonic() - started_s < 3
    assert a.ranks == ["a", "b"]
    lost = [event for agent in (a, b) for event in agent.events if isinstance(event, NodeLost)]
    assert [event.lost for event in lost] == ["c"]


def test_the_node_of_rank_0_and_leader_is_killed(make_job):
    job = make_job(max_nodes=3, ttl_s=60)
    a, b, c = job.start("a", "b", "c")
    assert a.coordinator.is_leader
    a.kill()
    started_s = time.monotonic()
    b.fail()
    c.fail()
    job.expect([b, c], size=2, after=1)
    assert time.monotonic() - started_s < 3
    assert b.ranks == ["b", "c"]
    assert b.memberships[-1].world.cause is Cause.NODE_LOST
    assert b.memberships[-1].store_port == b.memberships[-1].store.port


def test_a_dead_leader_is_replaced_when_its_lease_ends_though_nobody_failed(make_job):
    job = make_job(max_nodes=2)
    a, b = job.start("a", "b")
    assert a.coordinator.is_leader
    a.kill()
    job.expect([b], size=1, after=1)
    assert b.regroups[-1].cause is Cause.NODE_LOST
    assert not b.regroups[-1].planned


def test_join_leave_and_rejoin(make_job):
    job = make_job(max_nodes=3)
    a, b = job.start("a", "b")
    c = job.add("c")
    job.expect([a, b, c], size=3, after=1)
    assert a.regroups[-1].planned
    assert a.regroups[-1].cause is Cause.NODE_JOINED
    b.leave()
    job.expect([a, c], size=2, after=2)
    assert a.regroups[-1].cause is Cause.NODE_LEFT
    assert a.regroups[-1].planned
    assert a.ranks == ["a", "c"]


def test_a_spare_takes_the_place_of_a_lost_node_and_hears_of_the_end(make_job):
    job = make_job(max_nodes=2, min_nodes=2)
    a, b = job.start("a", "b")
    spare, other = job.add("c"), job.add("d")
    b.kill()
    a.fail()
    job.expect([a, spare], size=2, after=1)
    job.until(lambda: not other.coordinator.seated, what="word of a world without it")
    assert a.coordinator.seated
    assert spare.coordinator.seated
    assert a.ranks == ["a", "c"]
    a.done()
    spare.done()
    closed = job.expect_end([a, spare, other])
    assert {(end.outcome, end.exit_code) for end in closed} == {(Outcome.SUCCEEDED, 0)}
    assert len(closed) == 3


def test_too_few_nodes_end_with_a_count(make_job):
    job = make_job(min_nodes=2, join_timeout_s=0.3)
    agent = job.add("a")
    job.until(lambda: agent.ended is not None, what="the timeout")
    assert isinstance(agent.ended, Preempted)
    assert "1 of at least 2 nodes came within 0.3 s" in str(agent.ended)


def test_the_same_exception_twice_closes_the_job_for_all(make_job):
    job = make_job(max_nodes=2)
    a, b = job.start("a", "b")
    report = FailureReport(
        cause=Cause.WORKER_EXIT, rank=0, step=0, signature="ValueError: x", text="Traceback", exit_code=1
    )
    a.fail(report)
    job.expect([a, b], size=2, after=1)
    b.fail(report)
    closed = job.expect_end([a, b])
    assert [(end.outcome, end.exit_code, end.text) for end in closed] == [(Outcome.FAILED, 1, "Traceback")] * 2
    for agent in (a, b):
        job.agents.remove(agent)
        agent.stop()
        agent.store.close()
    again = job.add("a")
    assert job.expect([again], size=1, after=2) == 3, "a job of the same id starts anew, whatever the last one came to"


def test_a_closed_job_starts_again_with_a_higher_generation(make_job):
    job = make_job(max_nodes=1)
    (a,) = job.start("a")
    a.done()
    job.expect_end([a])
    b = job.add("b")
    assert job.expect([b], size=1, after=1) == 2


def test_a_commit_needs_the_newest_generation_and_a_live_lease(make_job, server):
    job = make_job(max_nodes=2)
    a, b = job.start("a", "b")
    assert a.coordinator.commit("one").granted
    assert b.coordinator.commit_record() == "one"
    b.holds_on = True
    b.store.cut()
    server.drop_lease(b.coordinator.lease)
    a.fail()
    job.expect([a], size=1, after=1)
    b.store.heal()
    refused = b.coordinator.commit("stale")
    assert not refused.granted
    assert "generation 1, the newest is 2" in refused.reason
    assert a.coordinator.commit_record() == "one"
    job.until(lambda: b.coordinator.regroup() is not None, what="news of the newer generation")
    assert b.coordinator.regroup().left_out


def test_a_commit_without_an_answer_is_not_granted(make_job):
    job = make_job(max_nodes=1)
    (a,) = job.start("a")
    a.store.cut()
    verdict = a.coordinator.commit("x", timeout_s=0.1)
    assert not verdict.granted
    assert "did not confirm" in verdict.reason
    assert a.coordinator.regroup() is None
    a.store.heal()


def test_all_leases_end_at_once_and_the_generation_stays(make_job, server):
    job = make_job(max_nodes=3)
    a, b = job.start("a", "b")
    for agent in (a, b):
        server.drop_lease(agent.coordinator.lease)
    for agent in (a, b):
        agent.coordinator._registration.publish(exporter="writes again")
    assert len(a.coordinator.members()) == 2
    c = job.add("c")
    job.expect([a, b, c], size=3, after=1)
    assert [a.coordinator.generation, a.regroups[-1].planned, len(a.regroups)] == [2, True, 1]


def test_a_wiped_store_gets_its_world_back_and_the_generation_goes_on(make_job, server):
    job = make_job(max_nodes=3)
    a, b = job.start("a", "b")
    server.wipe()
    job.commits(a, "one")
    assert a.coordinator.generation == 1
    c = job.add("c")
    job.expect([a, b, c], size=3, after=1)
    assert [regroup.planned for regroup in a.regroups] == [True], "only the newcomer changed anything"


def test_a_wiped_store_and_a_lost_member_lead_to_a_higher_generation(make_job, server):
    job = make_job(max_nodes=2, ttl_s=1)
    a, b = job.start("a", "b")
    b.kill()
    server.wipe()
    job.expect([a], size=1, after=1, deadline_s=20)
    assert "lost this job's world" in a.regroups[-1].reason


def test_a_world_is_not_written_again_over_a_newer_generation(make_job):
    job = make_job(max_nodes=1)
    (a,) = job.start("a")
    world = a.memberships[-1].world
    member = a.coordinator.members()[0]
    assert restorable(world, members=[member]).verdict
    assert "not here yet: a" in restorable(world, members=[]).reason
    ahead = dataclasses.replace(member, last_generation=2)
    assert "generation 2 is known" in restorable(world, members=[ahead]).reason


def test_two_jobs_never_meet(make_job):
    one, two = make_job(job_id="one", max_nodes=1), make_job(job_id="two", max_nodes=1)
    (a,) = one.start("a")
    (b,) = two.start("b")
    assert (len(a.coordinator.members()), len(b.coordinator.members())) == (1, 1)


def test_a_stopped_agent_leaves_no_key_behind(make_job, server):
    job = make_job(max_nodes=1)
    (a,) = job.start("a")
    a.stop()
    a.coordinator.done()
    assert [entry.key for entry in server.read(lambda key: True).entries if entry.lease] == []
