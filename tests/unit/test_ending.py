"""What the world key says is over for one agent: the job, or a generation that it never saw."""

import dataclasses

import pytest

from elastic.events import Cause
from elastic.rendezvous.ending import ending_of, missed_generation
from elastic.rendezvous.memory import MemoryServer, MemoryStore
from elastic.rendezvous.model import Barred, LeftOut, Phase, Seat, World
from tests.harness.agents import Job

SEAT = Seat(agent="a", node="a", address="", probe_port=0, slots=1, group_rank=0, base_rank=0)
WORLD = World(
    generation=4, phase=Phase.FORMED, seats=(SEAT,), store_address="", store_port=0, cause=Cause.START, reason="because"
)


def test_the_barred_agent_hears_its_own_code_and_the_others_nothing():
    world = dataclasses.replace(WORLD, barred=(Barred(agent="a", node="a", signature="E", exit_code=70, reason="why"),))
    assert ending_of(world, agent="a", seen_closed=0).exit_code == 70
    assert ending_of(world, agent="b", seen_closed=0) is None
    closed = dataclasses.replace(world, phase=Phase.CLOSED, exit_code=77)
    assert ending_of(closed, agent="b", seen_closed=0).exit_code == 77
    assert ending_of(closed, agent="b", seen_closed=4) is None
    assert ending_of(None, agent="b", seen_closed=0) is None


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({}, 0),
        ({"phase": Phase.OPEN}, 4),
        ({"phase": Phase.OPEN, "seats": ()}, 0),
        ({"seats": (), "left_out": (LeftOut(agent="a", generation=3),)}, 3),
        ({"seats": (), "left_out": (LeftOut(agent="b", generation=3),)}, 0),
    ],
)
def test_a_seat_that_was_never_taken_is_given_back(change, missed):
    world = dataclasses.replace(WORLD, **change)
    assert missed_generation(world, agent="a", ended=0) == missed
    assert missed_generation(world, agent="a", ended=4) == 0
    assert missed_generation(None, agent="a", ended=0) == 0


def test_an_agent_that_never_saw_its_generation_gets_into_the_next():
    """Its watch stood still while the generation was formed and lost a member."""
    server = MemoryServer()
    job = Job(lambda: MemoryStore(server), max_nodes=3, ttl_s=60, first_wait_s=60, late_wait_s=0.2)
    try:
        a = job.add("a")
        a.store.cut()  # the leader forms nothing before the others are there and one of them hears nothing
        b, c = job.add("b"), job.add("c")
        job.until(lambda: len(server.read(lambda key: "/members/" in key).entries) == 3, what="three members")
        c.store.cut()
        a.store.heal()
        job.expect([a, b], size=3)
        assert c.generation == 0
        b.kill()
        a.fail()
        job.expect([a], size=1, after=1)
        c.store.heal()
        job.expect([a, c], size=2, after=2)
    finally:
        job.close()
