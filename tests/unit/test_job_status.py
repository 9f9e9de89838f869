"""`elastic status --job`: what the keys in etcd say of a job."""

import dataclasses
import json

import pytest

from elastic.cli import job_status, main
from elastic.events import Cause
from elastic.observe.agreed import AgentSeen, job_rows, job_seen, pause_answer, resume_answer, scale_answer
from elastic.rendezvous.control import Asked, ask
from elastic.rendezvous.keys import Keys
from elastic.rendezvous.model import MemberState, Phase, Seat, World
from elastic.rendezvous.wish import NO_WISH, Wish, paused, scaled


def look(job):
    agent = job.agents[0]
    return job_status.look(agent.store, options=agent.coordinator.options)


def test_a_job_at_work_with_a_spare_and_one_that_is_gone(make_job):
    job = make_job(max_nodes=2)
    a, b = job.start("a", "b")
    spare = job.add("c")
    job.until(lambda: len(a.coordinator.members()) == 3, what="the spare")
    seen = look(job)
    assert (seen.state, seen.generation, seen.world_size, seen.failed) == ("AT WORK", 1, 2, False)
    assert [(each.node, each.rank, each.state) for each in seen.agents] == [
        ("a", 0, "at work"),
        ("b", 1, "at work"),
        ("c", None, "waits as spare"),
    ]
    world, members = a.coordinator.world(), [m for m in a.coordinator.members() if m.node == "a"]
    alone = job_seen("j", world=world, members=members, wish=NO_WISH)
    assert alone.agents[1] == AgentSeen(node="b", rank=1, state="has no key: its lease ended")
    assert spare.generation == 0
    assert b.generation == 1


def test_a_wish_shows(make_job):
    job = make_job(max_nodes=1)
    (a,) = job.start("a")
    options = a.coordinator.options
    keys = Keys.of(prefix=options.prefix, job_id=options.job_id)
    ask(a.store, keys=keys, change=lambda wish: scaled(wish, min_nodes=1, max_nodes=1, reason="ann"))
    ask(a.store, keys=keys, change=lambda wish: paused(wish, reason="asked by ann"))
    job.until(lambda: bool(a.regroups) and a.regroups[-1].cause is Cause.PAUSED, what="the pause")
    job.until(lambda: look(job).agents[0].state == "waits", what="its rest")
    seen = look(job)
    assert (seen.state, seen.limits) == ("PAUSED", (1, 1))
    rows = dict(job_rows(seen))
    assert rows["state"] == "PAUSED: paused (asked by ann): finish the step and save first"
    assert rows["limits"] == "1 to 1 nodes, as a person has asked"


def test_other_states(make_job):
    job = make_job(max_nodes=1)
    (a,) = job.start("a")
    world, (member,) = a.coordinator.world(), a.coordinator.members()
    closed = dataclasses.replace(world, phase=Phase.CLOSED, exit_code=77, reason="no progress")
    seen = job_seen("j", world=closed, members=[member], wish=NO_WISH)
    assert (seen.state, seen.failed, seen.agents[0].state) == ("OVER", True, "waits")
    assert job_seen("j", world=None, members=[], wish=NO_WISH).state == "NOT STARTED"
    asked = paused(NO_WISH, reason="ann")
    leaving = dataclasses.replace(member, state=MemberState.LEAVING)
    seen = job_seen("j", world=world, members=[leaving], wish=asked)
    assert (seen.state, seen.agents[0].state) == ("PAUSING", "leaving")
    assert json.dumps(dataclasses.asdict(seen))


def test_neither_a_run_nor_a_job_is_told(capsys):
    assert main(["status"]) == 64
    assert "name the save_path of a run, or a job in etcd with --job" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("phase", "limits", "rests", "then"),
    [
        (Phase.FORMED, (1, 2), False, "it has 2: it goes on as it is"),
        (Phase.FORMED, (1, 1), False, "it has 2: at its next step it goes on with 1"),
        (Phase.FORMED, (3, 4), False, "it has 2: at its next step it saves and waits for 3"),
        (Phase.OPEN, (3, 4), False, "it is between two generations, and goes on with at most 4 once 3 are here"),
        (Phase.FORMED, (1, 1), True, "it is asked to pause: with so many it goes on after `elastic resume`"),
        (Phase.OPEN, (3, 4), True, "it is asked to pause: with so many it goes on after `elastic resume`"),
    ],
)
def test_scale_says_what_will_become_of_the_job(phase, limits, rests, then):
    """Not what would become of one at work, where it waits or rests."""
    least, most = limits
    wish = scaled(Wish(paused=rests), min_nodes=least, max_nodes=most, reason="ann")
    asked = Asked(world=two_nodes(phase), before=NO_WISH, now=wish)
    assert scale_answer(asked) == f"the job may have {least} to {most} nodes now; {then}"


@pytest.mark.parametrize(
    ("phase", "rests", "pause", "resume"),
    [
        (Phase.FORMED, False, "it finishes its step, saves, and waits", "nothing changes"),
        (Phase.OPEN, False, "rests at the next one's first step", "nothing changes"),
        (Phase.OPEN, True, "was asked to pause before (ann)", "was asked to go on"),
    ],
)
def test_pause_and_resume_say_what_will_become_of_it(phase, rests, pause, resume):
    before = Wish(paused=rests, paused_by="ann" if rests else "")
    asked = Asked(world=two_nodes(phase), before=before, now=before)
    assert pause in pause_answer(asked)
    assert resume in resume_answer(asked)


def two_nodes(phase):
    seats = tuple(
        Seat(agent=name, node=name, address="h", probe_port=1, group_rank=rank, base_rank=rank, slots=1)
        for rank, name in enumerate("ab")
    )
    return World(
        generation=1, phase=phase, seats=seats, store_address="h", store_port=1, cause=Cause.START, reason="2 are here"
    )
