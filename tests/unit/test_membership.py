"""Membership in full, with coordinators in one process on the memory store: who comes, who goes, and when."""

import random
import threading

import pytest

from elastic.errors import ExitCode, Preempted
from elastic.events import Cause, NodesAwaited, Outcome
from elastic.rendezvous import reaching
from elastic.rendezvous.model import Phase, ProbeResult


def die(job, agent):
    agent.kill()
    job.agents.remove(agent)
    agent.store.close()


@pytest.mark.parametrize("pause_s", [0.0, 0.1, 1.5])
def test_quick_rejoin_under_the_same_name(make_job, pause_s):
    job = make_job(max_nodes=3, ttl_s=60)
    a, b = (job.add(node, named=True) for node in ("a", "b"))
    job.expect([a, b], size=2)
    die(job, b)
    threading.Event().wait(pause_s)  # the fault's own length
    again = job.add("b", named=True)
    a.fail()
    job.expect([a, again], size=2, after=1)
    assert a.ranks == ["a", "b"], "the survivor keeps rank 0, the newcomer fills the hole"


def test_a_spare_takes_over_at_once_and_leaves_with_success(make_job):
    job = make_job(max_nodes=2, ttl_s=60)
    a, b = job.start("a", "b")
    c, d = job.add("c"), job.add("d")
    job.until(lambda: len(c.coordinator.members()) == 4, what="two spares are there")
    assert a.generation == 1, "spares disturb nobody"
    die(job, b)
    a.fail()
    job.until(lambda: a.generation > 1, what="the spare takes over")
    assert len(a.ranks) == 2
    assert a.ranks[0] == "a"
    taken = c if "c" in a.ranks else d
    job.expect([a, taken], size=2, after=1)
    for agent in (a, taken):
        agent.done()
    ends = job.expect_end([a, c, d])
    assert [(end.outcome, end.exit_code) for end in ends] == [(Outcome.SUCCEEDED, 0)] * 3


def test_nodes_with_different_numbers_of_workers(make_job):
    job = make_job(max_nodes=3)
    agents = [job.add(node, slots=slots) for node, slots in (("a", 1), ("b", 4), ("c", 2))]
    job.expect(agents, size=3)
    world = agents[0].memberships[0].world
    assert world.world_size == 7
    assert [(seat.slots, seat.base_rank) for seat in world.seats] == [(1, 0), (4, 1), (2, 5)]


def test_too_few_nodes_end_with_75_and_an_event_says_what_is_awaited(make_job):
    job = make_job(min_nodes=3, max_nodes=4, join_timeout_s=0.7)
    a, b = job.add("a"), job.add("b")
    job.until(lambda: a.ended and b.ended, what="giving up")
    assert isinstance(a.ended, Preempted)
    assert a.ended.exit_code == ExitCode.PREEMPTED
    told = [event for agent in (a, b) for event in agent.events if isinstance(event, NodesAwaited)]
    assert (2, 3) in [(event.here, event.needed) for event in told]
    assert all("of at least 3" in event.reason for event in told)


def test_a_node_that_comes_while_a_round_closes_gets_in(make_job):
    job = make_job(max_nodes=4, ttl_s=60)
    a, b, c = job.start("a", "b", "c")
    die(job, c)
    a.fail()
    d = job.add("d")
    b.fail()
    job.expect([a, b, d], size=3, after=1)
    assert a.generation <= 3


def test_several_losses_at_once_one_of_them_the_leader(make_job):
    job = make_job(max_nodes=5, ttl_s=60)
    agents = job.start("a", "b", "c", "d", "e")
    lost = [agent for agent in agents if agent.coordinator.is_leader] + [
        agent for agent in agents if not agent.coordinator.is_leader
    ][:2]
    survivors = [agent for agent in agents if agent not in lost]
    for agent in lost:
        die(job, agent)
    for agent in survivors:
        agent.fail()
    job.expect(survivors, size=2, after=1)
    assert survivors[0].memberships[-1].world.cause is Cause.NODE_LOST


def test_a_loss_during_the_rendezvous_itself(make_job):
    job = make_job(max_nodes=3, ttl_s=60)
    a, b, c = job.start("a", "b", "c")
    c.holds_on = True  # its workers take long to end, and it dies before they do
    a.fail()
    b.fail()
    job.until(lambda: (world := a.coordinator.world()) is not None and world.phase == "open", what="a round")
    die(job, c)
    job.expect([a, b], size=2, after=1)


@pytest.mark.parametrize("count", [2, 4])
def test_down_to_one(make_job, count):
    job = make_job(max_nodes=count, ttl_s=60)
    agents = job.start(*(f"n{number}" for number in range(count)))
    for agent in agents[1:]:
        die(job, agent)
    agents[0].fail()
    job.expect(agents[:1], size=1, after=1)


def test_ranks_stay_and_holes_are_filled_in_natural_order(make_job):
    job = make_job(max_nodes=4, ttl_s=60)
    agents = dict(zip(("n1", "n2", "n10", "n9"), job.start("n1", "n2", "n10", "n9"), strict=True))
    assert agents["n1"].ranks == ["n1", "n2", "n9", "n10"]
    die(job, agents.pop("n2"))
    for agent in agents.values():
        agent.fail()
    job.expect(list(agents.values()), size=3, after=1)
    assert agents["n1"].ranks == ["n1", "n9", "n10"], "rank 0 does not move when others die"
    later = job.add("n0")
    job.expect([*agents.values(), later], size=4, after=2)
    assert later.ranks[0] == "n1", "who was there keeps its rank"


def test_sixteen_agents_fail_at_random_moments(make_job, request):
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    job = make_job(max_nodes=16, ttl_s=60, first_wait_s=0.5)
    agents = job.start(*(f"n{number}" for number in range(16)))
    failing = draw.sample(agents, 12)
    for agent in failing:
        threading.Event().wait(draw.random() * 0.05)
        agent.fail()
    last = max(agent.generation for agent in agents)
    generation = job.expect(agents, size=16, after=1, deadline_s=30)
    for agent in agents:
        numbers = [membership.generation for membership in agent.memberships]
        assert numbers == sorted(set(numbers)), f"seed {seed}"
    worlds = {}
    for agent in agents:
        for membership in agent.memberships:
            worlds.setdefault(membership.generation, set()).add(membership.world.seats)
    assert all(len(seen) == 1 for seen in worlds.values()), f"two worlds of one generation, seed {seed}"
    assert generation >= last
    assert generation <= 13, "failures that come together share a round"


def test_a_cut_that_leaves_too_few_is_over_when_it_ends(make_job, monkeypatch):
    cut, asked = threading.Event(), threading.Event()
    cut.set()

    def answers(targets):
        asked.set()
        return dict.fromkeys(targets, ProbeResult.SILENT if cut.is_set() else ProbeResult.ALIVE)

    monkeypatch.setattr(reaching, "probe_all", answers)
    monkeypatch.setattr(reaching, "AGAIN_S", 0.1)
    job = make_job(min_nodes=3, max_nodes=3, ttl_s=60)
    a, b, c = job.start("a", "b", "c")
    a.coordinator.report_unreachable([c.coordinator.identity.agent])
    for agent in (a, b, c):
        agent.fail()
    waits = "that reach each other"
    job.until(
        lambda: any(waits in e.reason for x in (a, b, c) for e in x.events if isinstance(e, NodesAwaited)),
        what="a wait",
    )
    job.until(lambda: a.coordinator.world().phase is Phase.OPEN, what="hearing of it")
    asked.clear()
    assert asked.wait(10), "it asks again while the round cannot be closed"
    assert a.generation == b.generation == c.generation == 1
    cut.clear()
    job.expect([a, b, c], size=3, after=1)
