"""What the world key says is over for one agent: the job, or a generation that it never saw."""

import dataclasses

import pytest

from elastic.events import Cause
from elastic.rendezvous.ending import ending_of, missed_generation, unheard_generation
from elastic.rendezvous.memory import MemoryServer, MemoryStore
from elastic.rendezvous.model import Barred, FailureReport, LeftOut, Member, MemberState, Phase, Seat, World
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


def test_who_said_nothing_for_a_seat_that_is_there_no_more_says_so_then():
    assert missed_generation(WORLD, agent="a", ended=2, entered=3) == 0, "it is there"
    assert missed_generation(WORLD, agent="b", ended=2, entered=3) == 3
    assert missed_generation(None, agent="a", ended=2, entered=3) == 3
    assert missed_generation(None, agent="a", ended=3, entered=3) == 0
    assert missed_generation(WORLD, agent="a", ended=3, entered=4) == 4, "the store holds again what was over"
    opened = dataclasses.replace(WORLD, phase=Phase.OPEN)
    assert missed_generation(opened, agent="a", ended=2, entered=3) == 4, "the later one of the two"


DIRECT = dataclasses.replace(WORLD, direct=True)
MEMBER = Member(
    agent="a", node="a", address="", slots=1, probe_port=0, store_port=0, lease=1, ended_generation=2, last_generation=3
)
BROKEN = FailureReport(cause=Cause.WORKER_SIGNAL, rank=0, step=1, signature="E", generation=3)


@pytest.mark.parametrize(
    ("world", "member", "since", "unheard"),
    [
        (DIRECT, {}, False, 0),
        (DIRECT, {"report": BROKEN}, False, 4),
        (DIRECT, {"report": BROKEN, "ended_generation": 4}, False, 0),
        (DIRECT, {"report": dataclasses.replace(BROKEN, cause=Cause.GROUP_FAILED)}, False, 0),
        (WORLD, {"report": BROKEN}, False, 0),
        (WORLD, {}, True, 4),
        (dataclasses.replace(WORLD, phase=Phase.OPEN), {}, True, 0),
        (WORLD, {"state": MemberState.DONE}, False, 4),
        (dataclasses.replace(WORLD, phase=Phase.OPEN), {"state": MemberState.DONE}, False, 4),
        (dataclasses.replace(WORLD, phase=Phase.CLOSED), {"state": MemberState.DONE}, False, 0),
        (dataclasses.replace(WORLD, seats=()), {"state": MemberState.DONE}, True, 0),
        (None, {}, True, 0),
    ],
)
def test_what_keeps_an_agent_from_taking_a_seat(world, member, since, unheard):
    member = dataclasses.replace(MEMBER, **member)
    assert unheard_generation(world, member=member, written_since=since) == unheard


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
