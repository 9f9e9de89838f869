"""A job so large that its seats are kept apart: everybody finds the right seat, through losses, joins and leaders."""

import dataclasses
from collections import Counter

import pytest

from elastic.launch.stall import targets
from elastic.rendezvous.control import ask
from elastic.rendezvous.keys import Keys
from elastic.rendezvous.memory import MemoryServer, MemoryStore
from elastic.rendezvous.wish import scaled
from tests.harness.agents import FakeAgent, Job

NODES = 70


class Counting(MemoryStore):
    """Counts how often a part of the seats is read."""

    def __init__(self, server: MemoryServer, reads: list[str]) -> None:
        super().__init__(server)
        self._reads = reads

    def get(self, key: str):
        if "/seats/" in key:
            self._reads.append(key)
        return super().get(key)


@pytest.fixture
def server():
    return MemoryServer()


@pytest.fixture
def reads():
    return []


@pytest.fixture
def job(server, reads):
    job = Job(lambda: Counting(server, reads), min_nodes=60, max_nodes=NODES, ttl_s=60)
    yield job
    job.close()


def agree(job: Job, agents: list[FakeAgent], *, after: int) -> int:
    """Wait until all are in one newer generation, in which each has a place of its own; its number."""

    def agreed() -> bool:
        generations = {agent.generation for agent in agents}
        return len(generations) == 1 and generations.pop() > after

    with job.news:
        assert job.news.wait_for(agreed, timeout=30), Counter(agent.generation for agent in agents)
    last = [agent.memberships[-1] for agent in agents]
    assert sorted(m.seat.group_rank for m in last) == list(range(len(agents)))
    assert all(m.world.seats == (m.seat,) for m in last), "nobody is told of all the seats"
    assert {(m.world.nodes, m.world.world_size) for m in last} == {(len(agents), len(agents))}
    assert len({m.world.token for m in last}) == 1
    return last[0].generation


def lose(server: MemoryServer, agent: FakeAgent) -> None:
    lease = agent.coordinator.lease
    agent.kill()
    with server.turn():
        server.drop_lease(lease)


def test_losses_joins_and_a_new_leader(job, server, reads):
    agents = [job.add(f"node{number}") for number in range(NODES)]
    first = agree(job, agents, after=0)
    ranks = [agent.memberships[-1].seat.group_rank for agent in agents]
    assert ranks == list(range(NODES)), "natural order"
    assert len(reads) == NODES

    victim = agents.pop(33)
    lose(server, victim)
    second = agree(job, agents, after=first)
    assert len(reads) == NODES, "who had a seat reads none"
    assert [agent.memberships[-1].seat.group_rank for agent in agents] == list(range(NODES - 1))

    leader = next(agent for agent in agents if agent.coordinator.is_leader)
    agents.remove(leader)
    lose(server, leader)
    third = agree(job, agents, after=second)
    assert agents[0].coordinator.commit("record").granted, "the token is the same for all"

    agents.append(newcomer := job.add("node99"))
    fourth = agree(job, agents, after=third)
    assert know_each_other(agents) == fourth
    assert sum(knows(agent, newcomer) for agent in agents) > 10, "those of its part have heard of it"
    assert not any(knows(agent, victim) or knows(agent, leader) for agent in agents)
    assert "/seats/" not in (server_text := world_text(server, job)), server_text
    assert len(server_text) < 1500, "what everybody reads stays small"


def test_a_spare_of_a_large_world_waits_and_takes_a_place(job, server):
    agents = [job.add(f"node{number}") for number in range(NODES)]
    first = agree(job, agents, after=0)
    spare = job.add("spare")
    job.until(lambda: len(spare.coordinator.members()) == NODES + 1, what="the spare's key")
    assert spare.generation == 0
    lose(server, agents.pop(5))
    agree(job, [*agents, spare], after=first)
    assert spare.memberships[-1].seat.group_rank == 5, "the hole is filled"


def test_a_store_that_lost_its_data_gets_the_large_world_back(job, server):
    agents = [job.add(f"node{number}") for number in range(NODES)]
    first = agree(job, agents, after=0)
    regroups = [len(agent.regroups) for agent in agents]  # some, where not all came to the first generation
    server.wipe()
    job.commits(agents[40], "record", deadline_s=30)
    assert all(agent.coordinator.generation == first for agent in agents)
    assert [len(agent.regroups) for agent in agents] == regroups
    assert know_each_other(agents) == first
    lose(server, agents.pop(11))
    agree(job, agents, after=first)


def test_a_spare_that_leads_writes_it_again(job, server):
    agents = [job.add(f"node{number}") for number in range(NODES)]
    first = agree(job, agents, after=0)
    spare = job.add("spare")
    job.until(lambda: len(spare.coordinator.members()) == NODES + 1, what="the spare's key")
    for agent in agents:
        server.drop_lease(agent.coordinator.lease)
        agent.coordinator._registration.publish(exporter="writes again")
    job.until(lambda: spare.coordinator.is_leader, what="the spare has the oldest key")
    world = spare.coordinator.world()
    job.until(lambda: len(spare.coordinator.known_seats(world)) == NODES, what="it has read the seats")
    for agent in agents:  # Those that led before know them too.
        agent.coordinator._leader.whole._worlds = ()
    regroups = [len(agent.regroups) for agent in agents]
    server.wipe()
    job.commits(agents[0], "record", deadline_s=30)
    assert all(agent.coordinator.generation == first for agent in agents)
    assert [len(agent.regroups) for agent in agents] == regroups
    assert spare.generation == 0


@pytest.mark.exhaustive
def test_who_was_cut_off_from_its_part_comes_back_when_it_reaches_it_again(job):
    agents = [job.add(f"node{number}") for number in range(NODES)]
    first = agree(job, agents, after=0)
    cut = next(agent for agent in agents if not agent.coordinator.is_leader)
    own = cut.coordinator.identity.agent
    named = [seat.agent for seat in cut.coordinator.known_seats(cut.coordinator.world()) if seat.agent != own][:3]
    cut.coordinator.report_unreachable(named)
    others = [agent for agent in agents if agent is not cut]
    second = agree(job, others, after=first)
    assert agree(job, agents, after=second) == second + 1, "its agents answer: it says so, rests, and is taken back"


def knows(agent: FakeAgent, other: FakeAgent) -> bool:
    """Whether an agent can say where another is."""
    seats = agent.coordinator.known_seats(agent.coordinator.world())
    return any(seat.agent == other.coordinator.identity.agent for seat in seats)


def know_each_other(agents: list[FakeAgent]) -> int:
    """Everybody has neighbours to ask when the world stands still, and each is asked by somebody; the generation."""
    asked: Counter[str] = Counter()
    for agent in agents:
        world = agent.memberships[-1].world
        known = dataclasses.replace(world, seats=agent.coordinator.known_seats(world))
        found = targets(known, agent=agent.coordinator.identity.agent)
        assert len(found) > 10
        asked.update(list(found))
    assert set(asked) == {agent.coordinator.identity.agent for agent in agents}
    return agents[0].generation


def world_text(server: MemoryServer, job: Job) -> str:
    keys = Keys.of(prefix=job.options.prefix, job_id=job.options.job_id)
    return MemoryStore(server).get(keys.world).value


@pytest.mark.exhaustive
def test_a_large_job_is_made_smaller_and_larger_again(job):
    agents = [job.add(f"node{number}") for number in range(NODES)]
    first = agree(job, agents, after=0)
    options = job.options
    keys = Keys.of(prefix=options.prefix, job_id=options.job_id)

    def scale(nodes):
        ask(agents[0].store, keys=keys, change=lambda w: scaled(w, min_nodes=nodes, max_nodes=nodes, reason="ann"))

    scale(66)
    second = agree(job, agents[:66], after=first)
    job.until(lambda: all(agent.regroups for agent in agents[66:]), what="the word to those that have no seat")
    assert [agent.regroups[0].ends for agent in agents] == [False] * 66 + [True] * 4
    scale(NODES)
    agree(job, agents, after=second)
