"""A member that is lost while all are at work: the next world at once, and what must be heard before that."""

import dataclasses

import pytest

from elastic.events import Cause, NodeLost, Outcome
from elastic.rendezvous.keys import Keys
from elastic.rendezvous.machine import decide
from elastic.rendezvous.memory import MemoryStore
from elastic.rendezvous.model import FailureReport, MemberState, Phase, ProbeResult
from elastic.rendezvous.verdict import Form, Open, Probe
from elastic.rendezvous.view import LeaderView, Limits, observe, with_probes
from tests.harness.agents import Job
from tests.harness.simulation import Simulation

BROKEN = FailureReport(
    cause=Cause.WORKER_EXIT, rank=0, step=3, signature="ValueError at x", text="Traceback", committed_steps=2
)
NAMES = ("a", "b", "c")


def lose(server, agent):
    lease = agent.coordinator.lease
    agent.kill()
    with server.turn():
        server.drop_lease(lease)


def key_revisions(server, agents):
    keys = Keys.of(prefix=agents[0].coordinator.options.prefix, job_id="job")
    store = MemoryStore(server)
    return [store.get(keys.member(agent.coordinator.identity.agent)).mod_revision for agent in agents]


def settled(job: Job, server, agents) -> None:
    """The one that hosts the workers' store has written where the next one is."""

    def written() -> bool:
        return {member.last_generation for member in agents[0].coordinator.members()} == {0, agents[0].generation}

    job.until(written, what="the next store")


def test_nobody_but_the_host_writes_and_each_generation_has_a_store_of_its_own(make_job, server):
    job = make_job(max_nodes=4, ttl_s=60)
    a, b, c, d = job.start("a", "b", "c", "d")
    settled(job, server, [a])
    before = key_revisions(server, [a, b, c])
    lose(server, d)
    job.expect([a, b, c], size=3, after=1)
    world = a.memberships[-1].world
    assert world.direct
    assert (world.cause, world.phase) == (Cause.NODE_LOST, Phase.FORMED)
    assert "d is gone" in world.reason
    assert [agent.memberships[-1].generation for agent in (a, b, c)] == [2, 2, 2]
    settled(job, server, [a])
    after = key_revisions(server, [a, b, c])
    assert after[0] > before[0]
    assert after[1:] == before[1:]
    ports = [membership.store_port for membership in a.memberships]
    assert len(set(ports)) == 2, "the store of the last generation is not used again"
    assert a.memberships[-1].store.is_open
    assert a.memberships[-1].store.port == ports[-1]
    assert not b.regroups[-1].left_out
    lost = [event.lost for agent in (a, b, c) for event in agent.events if isinstance(event, NodeLost)]
    assert lost == ["d"]


def test_the_next_to_host_has_a_store_that_listens(make_job, server):
    job = make_job(max_nodes=3, ttl_s=60)
    a, b, c = job.start("a", "b", "c")
    lose(server, a)
    job.expect([b, c], size=2, after=1)
    membership = b.memberships[-1]
    assert membership.seat.group_rank == 0
    assert membership.store.is_open
    assert membership.store.port == membership.store_port


def test_a_commit_of_those_who_have_not_heard_yet_is_refused(make_job, server):
    job = make_job(max_nodes=3, ttl_s=60)
    a, b, c = job.start("a", "b", "c")
    settled(job, server, [a])
    b.holds_on = True
    b.store.cut()
    lose(server, c)
    job.expect([a], size=2, after=1)
    assert a.memberships[-1].world.direct
    b.store.heal()
    refused = b.coordinator.commit("stale")
    assert (refused.granted, refused.stale) == (False, True)
    assert a.coordinator.commit("fresh").granted
    b.holds_on = False
    b._tell()
    job.expect([a, b], size=2, after=1)


def test_a_failure_that_was_not_heard_is_told_instead_of_taking_the_seat(make_job, server):
    job = make_job(max_nodes=3, ttl_s=60)
    a, b, c = job.start("a", "b", "c")
    settled(job, server, [a])
    b.holds_on = True
    lose(server, c)
    job.expect([a], size=2, after=1)
    job.until(lambda: b.coordinator.regroup() is not None, what="news of the next generation")
    b.holds_on = False
    b.fail(BROKEN)
    assert job.expect([a, b], size=2, after=2) == 3
    world = a.memberships[-1].world
    assert not world.direct
    assert world.cause is Cause.WORKER_EXIT
    failures = [(failure.generation, failure.signature) for failure in world.failures]
    assert failures == [(1, "ValueError at x")], "it counts once, for the generation that it ended"
    assert b.memberships[-1].generation == 3
    assert [membership.generation for membership in b.memberships] == [1, 3]


def test_who_is_done_says_so_of_the_generation_that_it_was_given_later(make_job, server):
    job = make_job(max_nodes=3, ttl_s=60)
    a, b, c = job.start("a", "b", "c")
    settled(job, server, [a])
    b.holds_on = True
    b.store.cut()
    lose(server, c)
    job.expect([a], size=2, after=1)
    b.done()
    b.store.heal()
    a.done()
    closed = job.expect_end([a, b])
    assert [(end.outcome, end.exit_code) for end in closed] == [(Outcome.SUCCEEDED, 0)] * 2


def at_work(**limits) -> LeaderView:
    """Three at work, c is gone; nobody was asked yet."""
    simulation = Simulation(Limits(min_nodes=1, max_nodes=3, **limits))
    for name in NAMES:
        simulation.join(name)
    simulation.settle()
    members = {name: member for name, member in simulation.members.items() if name != "c"}
    view = LeaderView(limits=simulation.limits)
    return observe(view, world=simulation.world, members=members, now_s=1.0)


def answered(view: LeaderView, **results: ProbeResult) -> LeaderView:
    return with_probes(view, results={"c": ProbeResult.REFUSED, **results}, now_s=1.0)


def changed(view: LeaderView, name: str, **fields) -> LeaderView:
    members = {**view.members, name: dataclasses.replace(view.members[name], **fields)}
    return dataclasses.replace(view, members=members)


ALIVE = dict.fromkeys(("a", "b"), ProbeResult.ALIVE)


def test_of_few_all_are_asked_and_of_many_only_who_is_gone():
    assert decide(at_work(), now_s=1.0).agents == ("c", "a", "b")
    many = at_work(ask_all_up_to=1)
    assert isinstance(decide(many, now_s=1.0), Probe)
    assert decide(many, now_s=1.0).agents == ("c",)
    verdict = decide(answered(many), now_s=1.0)
    assert isinstance(verdict, Form)
    assert [seat.agent for seat in verdict.world.seats] == ["a", "b"]
    assert isinstance(decide(answered(at_work(), **ALIVE), now_s=1.0), Form)


@pytest.mark.parametrize(
    "heard",
    [
        {"ended_generation": 1},
        {"ended_generation": 1, "report": dataclasses.replace(BROKEN, cause=Cause.PEER_LOST)},
        {"state": MemberState.LEAVING},
        {"unreachable": ("a",), "unreachable_in": 1},
    ],
    ids=["ended", "lost a peer", "leaving", "cut"],
)
def test_where_one_has_said_something_all_are_heard(heard):
    view = changed(answered(at_work(), **ALIVE), "b", **heard)
    assert isinstance(decide(view, now_s=1.0), Open)


@pytest.mark.parametrize(
    "view",
    [
        answered(at_work(), a=ProbeResult.ALIVE, b=ProbeResult.SILENT),
        answered(at_work(), a=ProbeResult.ALIVE),
        changed(answered(at_work(), **ALIVE), "a", last_generation=0),
        dataclasses.replace(answered(at_work(), **ALIVE), limits=Limits(min_nodes=3, max_nodes=3)),
    ],
    ids=["one does not answer", "one was not asked", "no store", "too few"],
)
def test_where_it_is_not_safe_they_come_together(view):
    assert isinstance(decide(view, now_s=1.0), Open)
