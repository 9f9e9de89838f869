"""A person's wish that a node leave: who hears of it, and what becomes of the key."""

import dataclasses
import queue

import pytest

from elastic.clock import ManualClock
from elastic.errors import UsageError
from elastic.rendezvous.drain import DrainWatch, drain
from elastic.rendezvous.keys import Keys
from elastic.rendezvous.membership import AgentIdentity, first_member
from elastic.rendezvous.memory import MemoryServer, MemoryStore
from elastic.rendezvous.model import MemberState, member_to_json

LIMIT_S = 10.0
KEYS = Keys.of(prefix="/jobs", job_id="j")


@pytest.fixture
def server():
    return MemoryServer(ManualClock())


@pytest.fixture
def store(server):
    store = MemoryStore(server)
    yield store
    store.close()


@pytest.fixture
def here(store):
    """Make a member; its lease."""

    def here(agent, node, **fields):
        lease = store.grant(5)
        member = first_member(AgentIdentity(agent=agent, node=node, address="127.0.0.1", slots=1))
        text = member_to_json(dataclasses.replace(member, lease=lease, **fields))
        store.put(KEYS.member(agent), text, lease=lease)
        return lease

    return here


@pytest.fixture
def listen(store):
    """Watch as an agent; what it hears, in a queue."""
    watches = []

    def listen(agent):
        heard = queue.SimpleQueue()
        watches.append(DrainWatch(store, keys=KEYS, agent=agent, on_drain=heard.put))
        watches[-1].start()
        return heard

    yield listen
    for watch in watches:
        watch.stop()


def test_the_node_asked_hears_of_it_and_no_other(store, here, listen):
    here("1", "a"), here("2", "b")
    first, second = listen("1"), listen("2")
    assert drain(store, keys=KEYS, node="a", reason="new disk") == ("1",)
    assert first.get(timeout=LIMIT_S) == "new disk"
    assert second.empty()


def test_who_comes_to_watch_later_hears_of_it_too(store, here, listen):
    here("1", "a")
    drain(store, keys=KEYS, node="a", reason="new disk")
    heard = listen("1")
    assert heard.get(timeout=LIMIT_S) == "new disk"


def test_all_agents_of_a_node_are_asked_and_each_hears_once(store, here, listen):
    here("1", "a"), here("2", "a")
    heard = [listen("1"), listen("2")]
    for reason in ("first", "again"):
        assert drain(store, keys=KEYS, node="a", reason=reason) == ("1", "2")
    assert [each.get(timeout=LIMIT_S) for each in heard] == ["first", "first"]
    assert all(each.empty() for each in heard)


def test_the_wish_is_gone_with_the_agent_so_that_its_successor_stays(store, here, listen):
    lease = here("1", "a")
    drain(store, keys=KEYS, node="a", reason="new disk")
    store.revoke(lease)
    here("2", "a")
    assert listen("2").empty()
    assert store.get(KEYS.drain("1")) is None


def test_a_node_that_is_not_there_is_told_with_those_that_are(store, here):
    here("1", "a"), here("2", "b")
    with pytest.raises(UsageError, match=r"no node 'c' takes part in this job; there are: a, b"):
        drain(store, keys=KEYS, node="c", reason="")


def test_a_node_that_goes_meanwhile_is_not_there(store, here):
    lease = here("1", "a")
    entry = store.get(KEYS.member("1"))
    store.revoke(lease)
    store.put(KEYS.member("1"), entry.value)  # as read before it went
    with pytest.raises(UsageError, match="no node 'a'"):
        drain(store, keys=KEYS, node="a", reason="")


def test_one_that_leaves_already_needs_no_asking(store, here):
    here("1", "a", state=MemberState.LEAVING)
    assert drain(store, keys=KEYS, node="a", reason="") == ("1",)
    assert store.get(KEYS.drain("1")) is None
