"""Old and new agents in one job: taken in or refused by what they speak, never something between."""

import contextlib
import dataclasses
import json

import pytest
import torch

from elastic.errors import ExitCode, StoreError, VersionsDiffer
from elastic.rendezvous import speech
from elastic.rendezvous.assemble import assemble
from elastic.rendezvous.keys import Keys
from elastic.rendezvous.kv import Put
from elastic.rendezvous.memory import MemoryServer, MemoryStore
from elastic.rendezvous.model import Member, member_from_json, member_to_json, world_from_json, world_to_json

LATER = f"protocol {speech.PROTOCOL + 1}"
OLD, NEW = f"protocol {speech.PROTOCOL}, torch 2.13", f"{LATER}, torch 2.14"


def test_a_patch_release_is_no_other_language():
    assert speech.spoken("2.13.0+cpu") == speech.spoken("2.13.4") == OLD
    assert speech.spoken("2.14.0") != OLD


@pytest.mark.parametrize(("first", "second"), [(OLD, NEW), (NEW, OLD)], ids=["upgrade", "rollback"])
def test_a_node_of_another_version_is_refused_and_nobody_is_disturbed(make_job, first, second):
    job = make_job(max_nodes=4, ttl_s=60)
    a, b = (job.add(node, speaks=first) for node in ("a", "b"))
    job.expect([a, b], size=2)
    other = job.add("other", speaks=second)
    job.until(lambda: other.ended, what="it is refused")
    assert isinstance(other.ended, VersionsDiffer)
    assert (other.ended.exit_code, other.ended.node_local) == (ExitCode.USAGE, True)
    assert f"this node speaks {second!r}, the run {first!r}: install the same version" in str(other.ended)
    assert (a.generation, b.generation, a.regroups) == (1, 1, [])
    c = job.add("c", speaks=first)
    job.expect([a, b, c], size=3, after=1)


def test_a_run_that_moved_as_a_whole_goes_on_with_the_new_version(make_job):
    job = make_job(max_nodes=2, ttl_s=60)
    a, b = (job.add(node, speaks=OLD) for node in ("a", "b"))
    job.expect([a, b], size=2)
    for agent in (a, b):
        agent.stop()
        job.agents.remove(agent)
        agent.store.close()
    c, d = (job.add(node, speaks=NEW) for node in ("c", "d"))
    job.expect([c, d], size=2, after=1)
    assert c.memberships[-1].world.speaks == NEW


def test_at_a_first_start_of_both_the_leader_s_version_wins(make_job):
    job = make_job(min_nodes=1, max_nodes=4, ttl_s=60)
    a, b, c = job.add("a", speaks=OLD), job.add("b", speaks=NEW), job.add("c", speaks=OLD)
    job.expect([a, c], size=2)
    job.until(lambda: b.ended, what="the other is refused")
    assert isinstance(b.ended, VersionsDiffer)


def test_it_survives_the_store(make_job):
    job = make_job(max_nodes=1)
    a = job.add("a", speaks=OLD)
    job.expect([a], size=1)
    world = a.memberships[0].world
    assert world.speaks == OLD
    assert world_from_json(world_to_json(world)) == world
    assert member_from_json(member_to_json(MEMBER)) == MEMBER


MEMBER = Member(agent="x", node="x", address="::1", slots=1, probe_port=1, store_port=1, lease=1, speaks=OLD)


def test_a_key_that_a_later_version_wrote_is_told_apart_from_rubbish():
    later = {**json.loads(member_to_json(dataclasses.replace(MEMBER, speaks=NEW))), "state": "hibernating"}
    with pytest.raises(VersionsDiffer, match=f"written by an agent that speaks '{NEW}'"):
        member_from_json(json.dumps(later))
    ours = {**later, "speaks": OLD}
    with pytest.raises(StoreError, match="not a member of this version") as raised:
        member_from_json(json.dumps(ours))
    assert not isinstance(raised.value, VersionsDiffer)
    for rubbish in ("", "[]", "what"):
        with pytest.raises(StoreError, match="not a member of this version"):
            member_from_json(rubbish)


def test_a_field_that_a_later_version_added_is_passed_over():
    later = {**json.loads(member_to_json(MEMBER)), "colour": "blue"}
    assert member_from_json(json.dumps(later)) == MEMBER


def test_an_agent_tells_what_it_speaks(monkeypatch):
    monkeypatch.setattr("elastic.rendezvous.assemble.EtcdStore", lambda options, *, clock: MemoryStore(MemoryServer()))
    monkeypatch.setattr("elastic.rendezvous.assemble.address_towards", lambda endpoints: "127.0.0.1")
    parameters = torch.distributed.elastic.rendezvous.api.RendezvousParameters("etcd", "127.0.0.1:1", "job", 1, 1)
    handler = assemble(parameters, environ={})
    assert handler.coordinator.identity.speaks == speech.spoken(torch.__version__)


def test_a_world_of_a_later_version_ends_who_cannot_read_it(make_job):
    job = make_job(max_nodes=2)
    keys = Keys.of(prefix=job.options.prefix, job_id=job.options.job_id)
    text = json.dumps({"phase": "sleeping", "generation": 7, "speaks": NEW})
    with contextlib.closing(job._store()) as store:
        store.transact([], ops=[Put(keys.world, text)])
    with pytest.raises(VersionsDiffer, match=f"the world key was written by an agent that speaks '{LATER}"):
        job.add("a", speaks=OLD)


def test_a_worker_whose_agent_is_of_another_version_says_so():
    speech.agree({}, torch_version="2.13.0")
    speech.agree({speech.SPEAKS: OLD}, torch_version="2.13.1")
    with pytest.raises(VersionsDiffer, match=f"this worker speaks '{OLD}', its agent '{LATER}"):
        speech.agree({speech.SPEAKS: NEW}, torch_version="2.13.0")
