"""With exact numerics: a node that would compute other bits is refused before anybody makes room for it."""

import dataclasses
import json

import pytest

from elastic.config.load import with_overrides
from elastic.config.model import Settings
from elastic.errors import NumericsDiffer
from elastic.launch.likeness import likeness_of
from elastic.plan.likeness import Likeness
from elastic.rendezvous import alike
from elastic.rendezvous.model import Member, member_from_json, member_to_json, world_from_json, world_to_json
from tests.unit.test_likeness import OTHER, OURS


def text(likeness):
    return json.dumps(likeness.to_plain())


def test_a_newcomer_that_differs_is_told_so_and_nobody_is_disturbed(make_job):
    job = make_job(max_nodes=4, ttl_s=60)
    a, b = (job.add(node, numerics=text(OURS)) for node in ("a", "b"))
    job.expect([a, b], size=2)
    odd, plain = job.add("odd", numerics=text(OTHER)), job.add("plain")
    job.until(lambda: odd.ended and plain.ended, what="both newcomers are refused")
    assert isinstance(odd.ended, NumericsDiffer)
    assert (odd.ended.exit_code, odd.ended.node_local) == (64, True)
    assert "threads is 2, that of the run 1" in str(odd.ended)
    assert "its own training.numerics is plain" in str(plain.ended)
    assert (a.generation, b.generation, a.regroups) == (1, 1, [])
    c = job.add("c", numerics=text(OURS))
    job.expect([a, b, c], size=3, after=1)


def test_a_run_that_moved_as_a_whole_goes_on(make_job):
    job = make_job(max_nodes=2, ttl_s=60)
    a, b = (job.add(node, numerics=text(OURS)) for node in ("a", "b"))
    job.expect([a, b], size=2)
    for agent in (a, b):
        agent.stop()
        job.agents.remove(agent)
        agent.store.close()
    c, d = (job.add(node, numerics=text(OTHER)) for node in ("c", "d"))
    job.expect([c, d], size=2, after=1)
    assert c.memberships[-1].world.numerics == text(OTHER)


def test_members_that_differ_from_the_start_leave_it_to_their_workers(make_job):
    job = make_job(min_nodes=2, max_nodes=2)
    a, b = job.add("a", numerics=text(OURS)), job.add("b", numerics=text(OTHER))
    job.expect([a, b], size=2)
    assert a.memberships[0].world.numerics == ""


MEMBER = Member(agent="x", node="x", address="::1", slots=1, probe_port=1, store_port=1, lease=1, numerics=text(OURS))


def test_it_survives_the_store(make_job):
    assert member_from_json(member_to_json(MEMBER)) == MEMBER
    job = make_job(max_nodes=1)
    a = job.add("a", numerics=text(OURS))
    job.expect([a], size=1)
    world = a.memberships[0].world
    assert world.numerics == text(OURS)
    assert world_from_json(world_to_json(world)) == world


def test_a_text_of_another_version_is_no_riddle(make_job):
    job = make_job(max_nodes=1)
    a = job.add("a", numerics=text(OURS))
    job.expect([a], size=1)
    world = a.memberships[0].world
    for odd, words in (("{}", "versions differ"), ("what", "Expecting value")):
        with pytest.raises(NumericsDiffer, match=words):
            alike.check(dataclasses.replace(MEMBER, numerics=odd), world=world, members=lambda: [MEMBER_A])
    alike.check(dataclasses.replace(MEMBER, numerics="what"), world=world, members=list)


MEMBER_A = dataclasses.replace(MEMBER, agent="a", node="a")


def test_an_agent_tells_what_its_workers_will_be_like():
    settings = with_overrides(Settings(), {"numerics": "exact", "threads_per_worker": 3, "seed": 9})
    found = Likeness.from_plain(json.loads(likeness_of(settings.training, environ={"MKL_CBWR": "AVX2"})))
    assert (found.threads, found.seed, found.device) == (3, 9, "cpu")
    assert "MKL_CBWR=AVX2" in found.precision
    assert likeness_of(Settings().training, environ={}) == ""
