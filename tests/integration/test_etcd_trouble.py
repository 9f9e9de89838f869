"""etcd's trouble is not the job's: agents on real clusters of one and three members, and what may happen to these.

Each fault is followed by a commit and by a newcomer: the agents must agree again, at a generation that is as high as
before until the newcomer comes, and nobody may have been told to start anew in between.
"""

from __future__ import annotations

import pytest

from elastic.clock import SYSTEM_CLOCK
from elastic.local.etcd import EtcdCluster, EtcdServer
from elastic.rendezvous.etcd import EtcdStore
from elastic.rendezvous.etcd_watch import EtcdWatch
from elastic.rendezvous.kv import Put, created_at, modified_at
from elastic.rendezvous.options import RendezvousOptions
from tests.harness import etcd_admin
from tests.harness.agents import Job
from tests.harness.proxy import Proxy
from tests.harness.store_contract import Heard

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

TTL_S = 2
LONGER_THAN_EVERY_LEASE_S = 3.5


@pytest.fixture
def one(tmp_path):
    with EtcdServer(tmp_path / "etcd") as server:
        yield server


@pytest.fixture
def three(tmp_path):
    with EtcdCluster(tmp_path / "etcd") as cluster:
        yield cluster


@pytest.fixture
def proxied(one):
    """A proxy before the single member. Ask for it before `make_job`, so that it goes after the agents."""
    with Proxy(one.endpoint) as proxy:
        yield proxy


@pytest.fixture
def make_job(request):
    jobs = []

    def make(*endpoints, **options):
        reach = {"endpoints": endpoints, "call_timeout_s": options.pop("call_timeout_s", 2.0)}
        place = RendezvousOptions(job_id="none", min_nodes=1, max_nodes=1, **reach, **options.pop("login", {}))
        jobs.append(Job(lambda: EtcdStore(place), job_id=request.node.name, ttl_s=TTL_S, **reach, **options))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()


def wait_s(seconds):
    """The length of a fault."""
    SYSTEM_CLOCK.sleep(seconds)


def assert_goes_on(job, agents, *, deadline_s=20.0):
    """The generation is what it was, commits are taken, and a newcomer is the first to change anything."""
    generation = agents[0].generation
    assert [agent.coordinator.regroup() for agent in agents] == [None] * len(agents)
    job.commits(agents[0], "after", deadline_s=deadline_s)
    assert {agent.generation for agent in agents} == {generation}
    newcomer = job.add("z")
    after = job.expect([*agents, newcomer], size=len(agents) + 1, after=generation, deadline_s=deadline_s)
    assert after == generation + 1
    for agent in agents:
        assert [regroup.planned for regroup in agent.regroups] == [True], agent.regroups


def test_the_leader_of_the_cluster_is_killed_and_comes_back(three, make_job):
    job = make_job(*three.endpoints)
    agents = job.start("a", "b")
    leader = etcd_admin.leader(*three.members)
    leader.kill()
    assert agents[0].coordinator.commit("without it").granted
    assert etcd_admin.leader(*(member for member in three.members if member is not leader)) is not leader
    leader.start()
    assert_goes_on(job, agents)


def test_members_are_restarted_one_after_the_other(three, make_job):
    job = make_job(*three.endpoints)
    agents = job.start("a", "b")
    for number, member in enumerate(three.members):
        member.kill()
        # While the others elect a leader a commit may stay unconfirmed; the worker's next save asks again.
        verdicts = []
        while len(verdicts) < 5 and not (verdicts and verdicts[-1].granted):
            verdicts.append(agents[0].coordinator.commit(f"without {number}"))
        assert verdicts[-1].granted, verdicts
        assert not any(verdict.stale for verdict in verdicts)
        member.start()
    assert_goes_on(job, agents)


def test_a_frozen_member_is_left_for_another_and_its_watches_with_it(three, make_job):
    job = make_job(*three.endpoints)
    agents = job.start("a", "b")
    used = three.members[0]
    assert agents[0].store._link.endpoint == used.endpoint
    used.pause()
    try:
        wait_s(LONGER_THAN_EVERY_LEASE_S)
        assert_goes_on(job, agents)
        assert agents[0].store._link.endpoint != used.endpoint, "it was left"
    finally:
        used.resume()


def test_all_members_are_down_for_longer_than_every_lease(three, make_job):
    job = make_job(*three.endpoints)
    agents = job.start("a", "b")
    three.kill()
    wait_s(LONGER_THAN_EVERY_LEASE_S)
    assert not agents[0].coordinator.commit("nobody there", timeout_s=0.1).granted
    three.start()
    assert_goes_on(job, agents)


@pytest.mark.exhaustive
def test_all_members_are_down_for_a_minute(three, make_job):
    job = make_job(*three.endpoints)
    agents = job.start("a", "b")
    three.kill()
    wait_s(60)
    assert not agents[0].coordinator.commit("nobody there", timeout_s=0.1).granted
    three.start()
    assert_goes_on(job, agents)


def test_all_members_lose_their_data(three, make_job):
    job = make_job(*three.endpoints)
    agents = job.start("a", "b")
    token = agents[0].coordinator.world().token
    mark = etcd_admin.mark(*three.endpoints)
    three.kill()
    three.wipe()
    three.start()
    assert mark not in etcd_admin.keys(*three.endpoints), "the data is gone"
    job.commits(agents[0], "after", deadline_s=20)
    assert etcd_admin.keys(*three.endpoints)[agents[0].coordinator._keys.generation] == token, "it is written again"
    assert_goes_on(job, agents)


def test_compaction_under_every_watch(one, make_job, monkeypatch):
    job, read_anew, begin = make_job(one.endpoint), [], EtcdWatch.begin
    agents = job.start("a", "b")
    monkeypatch.setattr(EtcdWatch, "begin", lambda watch: (read_anew.append(watch), begin(watch)))
    for _ in range(3):
        assert agents[0].coordinator.commit("x").granted
        etcd_admin.compact(one.endpoint)
        for agent in agents:
            agent.store._link.next_endpoint()  # every watch begins again, from before the compaction
    job.until(lambda: len(set(read_anew)) >= len(agents), what="watches that read all there is")
    assert_goes_on(job, agents)


def test_slow_answers(proxied, make_job):
    job = make_job(proxied.endpoint, call_timeout_s=4.0)
    agents = job.start("a", "b")
    proxied.delay_s = 0.15
    wait_s(LONGER_THAN_EVERY_LEASE_S)
    assert proxied.delayed > 10
    assert_goes_on(job, agents)


@pytest.mark.parametrize("direction", ["requests", "answers", "both"])
def test_half_open_connections_for_longer_than_every_lease(proxied, make_job, direction):
    job = make_job(proxied.endpoint)
    agents = job.start("a", "b")
    proxied.mute(requests=direction != "answers", answers=direction != "requests")
    wait_s(LONGER_THAN_EVERY_LEASE_S)
    assert proxied.lost_bytes > 0
    assert [agent.coordinator.regroup() for agent in agents] == [None, None]
    proxied.heal()
    assert_goes_on(job, agents)


@pytest.fixture
def lossy(one, proxied):
    """A store behind a proxy, and one that sees the truth."""
    store = EtcdStore(etcd_admin.options(proxied.endpoint, call_timeout_s=4))
    truth = EtcdStore(etcd_admin.options(one.endpoint))
    yield store, truth, proxied
    store.close()
    truth.close()


def test_a_transaction_whose_answer_was_lost_is_done_once_and_not_taken_for_refused(lossy):
    store, truth, proxy = lossy
    first = store.put("/k", "0")
    proxy.lose_answers()
    done = store.transact([modified_at("/k", first)], ops=[Put("/k", "1"), Put("/l", "1")])
    assert proxy.lost_bytes > 0, "an answer was lost"
    assert proxy.accepted == 2, "a second try was made, on a new connection"
    entry = truth.get("/k")
    assert done.succeeded
    assert (entry.value, entry.mod_revision, truth.get("/l").mod_revision) == ("1", done.revision, done.revision)
    assert done.revision == first + 1, "it was done once"


def test_a_transaction_that_is_refused_stays_so_when_answers_are_lost(lossy):
    store, truth, proxy = lossy
    first = store.put("/k", "0")
    truth.put("/k", "another's")
    proxy.lose_answers()
    assert not store.transact([modified_at("/k", first)], ops=[Put("/k", "1")]).succeeded
    assert proxy.lost_bytes > 0
    assert truth.get("/k").value == "another's"


def test_a_refusal_that_was_answered_is_one_even_where_the_value_is_the_same(lossy):
    store, truth, _ = lossy
    truth.put("/k", "1")
    assert not store.transact([created_at("/k", 0)], ops=[Put("/k", "1")]).succeeded


def test_a_commit_whose_answers_are_lost_for_good_is_not_confirmed_and_a_late_one_undoes_nothing(proxied, make_job):
    job = make_job(proxied.endpoint, call_timeout_s=1.0)
    (a,) = job.start("a")
    proxied.mute(requests=False, answers=True)
    verdict = a.coordinator.commit("25", timeout_s=0.1)
    assert not verdict.granted
    assert not verdict.stale
    assert proxied.lost_bytes > 0
    proxied.heal()
    job.commits(a, "50")
    assert a.coordinator.commit_record() == "50"
    assert a.coordinator.regroup() is None


def test_a_put_that_arrives_late_does_not_take_a_member_key_back(one, make_job):
    job = make_job(one.endpoint)
    (a,) = job.start("a")
    registration = a.coordinator._registration
    held_up = [modified_at(registration._keys.member(registration.member.agent), registration._revision)]
    old = Put(registration._keys.member(registration.member.agent), "old", registration.member.lease)
    registration.publish(exporter="new")
    assert not a.store.transact(held_up, ops=[old]).succeeded
    assert a.coordinator.members()[0].exporter == "new"


def test_a_member_without_its_cluster_says_so_and_is_left(three):
    store = EtcdStore(etcd_admin.options(*three.endpoints, call_timeout_s=15))  # they elect a leader first
    heard = Heard()
    watch = store.watch("/k", on_update=heard.on_update, on_break=heard.on_break)
    heard.wait_for(lambda: heard.updates)
    others = three.members[1:]
    for member in others:
        member.pause()
    try:
        # Three election timeouts without its cluster, and the member gives the watch up.
        heard.wait_for(lambda: heard.breaks, deadline_s=15)
        assert any("leader" in reason for reason in heard.breaks), heard.breaks
    finally:
        for member in others:
            member.resume()
    store.put("/k", "1")
    heard.wait_for(lambda: heard.values() == {"/k": "1"}, deadline_s=15)
    watch.cancel()
    store.close()
