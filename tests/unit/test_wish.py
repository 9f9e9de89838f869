"""A person's wish for a whole job: how it is written, who hears of it, and what becomes of it."""

import dataclasses
import json
import threading

import pytest

from elastic.clock import ManualClock
from elastic.errors import StoreError, UsageError
from elastic.events import Cause, WishHeard
from elastic.rendezvous.control import ask
from elastic.rendezvous.keys import Keys
from elastic.rendezvous.kv import Delete, Put
from elastic.rendezvous.memory import MemoryServer, MemoryStore
from elastic.rendezvous.model import Phase, World, world_to_json
from elastic.rendezvous.wish import NO_WISH, What, Wish, paused, resumed, scaled, wish_from_json, wish_to_json
from elastic.rendezvous.wish_watch import WishWatch

KEYS = Keys.of(prefix="/jobs", job_id="j")
AT_WORK = World(
    generation=1, phase=Phase.FORMED, seats=(), store_address="", store_port=0, cause=Cause.START, reason="done on a"
)


@pytest.fixture
def store():
    store = MemoryStore(MemoryServer(ManualClock()))
    store.put(KEYS.world, world_to_json(AT_WORK))
    yield store
    store.close()


class News:
    """Wakes who waits for a watch to have told something."""

    def __init__(self):
        self._changed = threading.Condition()

    def ring(self):
        with self._changed:
            self._changed.notify_all()

    def until(self, condition):
        with self._changed:
            assert self._changed.wait_for(condition, timeout=10)


@pytest.fixture
def news():
    return News()


@pytest.fixture
def listen(store, news):
    """Lead; what there is to know and what was told."""
    watches = []

    def listen():
        told = []
        watch = WishWatch(store, keys=KEYS, emit=told.append, on_change=news.ring)
        watches.append(watch)
        watch.start()
        return watch, told

    yield listen
    for watch in watches:
        watch.stop()


def smaller(wish):
    return scaled(wish, min_nodes=1, max_nodes=2, reason="ann")


def rest(wish):
    return paused(wish, reason="bob")


def written(store):
    return wish_from_json(store.get(KEYS.wish).value)


def test_wishes_add_up_and_are_taken_back_one_by_one(store):
    for change in (smaller, rest):
        assert ask(store, keys=KEYS, change=change).world == AT_WORK
    assert written(store) == Wish(
        min_nodes=1, max_nodes=2, paused=True, what=What.PAUSE, reason="bob", paused_by="bob", told=False
    )
    ask(store, keys=KEYS, change=lambda wish: resumed(wish, reason="cid"))
    found = written(store)
    assert (found.min_nodes, found.max_nodes, found.paused, found.paused_by) == (1, 2, False, "")


def test_who_asks_at_the_same_time_is_not_overwritten(store):
    def slow(wish):
        if not wish.paused:
            ask(store, keys=KEYS, change=rest)
        return smaller(wish)

    ask(store, keys=KEYS, change=slow)
    assert (written(store).paused, written(store).max_nodes) == (True, 2)


def test_a_job_that_is_not_there_or_over_is_told(store):
    store.put(KEYS.world, world_to_json(dataclasses.replace(AT_WORK, phase=Phase.CLOSED)))
    with pytest.raises(UsageError, match=r"this job is over \(done on a\): start it with what you want"):
        ask(store, keys=KEYS, change=rest)
    other = Keys.of(prefix="/jobs", job_id="other")
    with pytest.raises(UsageError, match="no generation of this job was ever agreed at /jobs/other"):
        ask(store, keys=other, change=rest)


def test_a_wish_is_not_left_to_the_job_that_is_started_after_one_that_ends_meanwhile(store):
    closed = world_to_json(dataclasses.replace(AT_WORK, phase=Phase.CLOSED))

    def late(wish):
        store.transact([], ops=[Put(KEYS.world, closed)])
        return rest(wish)

    with pytest.raises(UsageError, match="is over"):
        ask(store, keys=KEYS, change=late)
    assert store.get(KEYS.wish) is None


def test_the_leader_hears_of_each_wish_and_the_next_leader_of_none_again(store, listen, news):
    watch, told = listen()
    news.until(lambda: watch.wish == NO_WISH)
    ask(store, keys=KEYS, change=smaller)
    ask(store, keys=KEYS, change=rest)
    news.until(lambda: watch.wish.paused)
    watch.tell()
    assert told == [
        WishHeard(what="scale", min_nodes=1, max_nodes=2, reason="ann"),
        WishHeard(what="pause", min_nodes=1, max_nodes=2, reason="bob"),
    ]
    later, again = listen()
    news.until(lambda: later.wish is not None and later.wish.paused and later.wish.told)
    later.tell()
    assert again == []


def test_what_was_asked_while_nobody_led_is_told_by_the_next_leader(store, listen, news):
    ask(store, keys=KEYS, change=rest)
    watch, told = listen()
    news.until(lambda: watch.wish is not None)
    watch.tell()
    assert [event.what for event in told] == ["pause"]


def test_a_wish_ends_with_its_key_and_what_is_none_is_passed_over(store, listen, news):
    watch, _told = listen()
    ask(store, keys=KEYS, change=rest)
    news.until(lambda: watch.wish is not None and watch.wish.paused)
    store.put(KEYS.wish, "no wish")
    ask(store, keys=KEYS, change=smaller)
    news.until(lambda: watch.wish.max_nodes == 2 and not watch.wish.paused)
    store.put(KEYS.wish, json.dumps({"what": "pause", "paused": True, "reason": "a later version", "new": 1}))
    news.until(lambda: watch.wish.reason == "a later version")
    store.transact([], ops=[Delete(KEYS.wish)])
    news.until(lambda: watch.wish == NO_WISH)


NO_WISHES = [
    "",
    "[]",
    "{}",
    '{"what":"dance"}',
    '{"what":"scale","min_nodes":3,"max_nodes":2}',
    '{"what":"scale","min_nodes":1,"max_nodes":2.5}',
    '{"what":"scale","min_nodes":false,"max_nodes":true}',
    '{"what":"scale","min_nodes":"1","max_nodes":"2"}',
    '{"what":"pause","paused":1}',
    '{"what":"pause","paused":true,"reason":["x"]}',
]


@pytest.mark.parametrize("text", NO_WISHES)
def test_what_is_no_wish_says_so(text):
    with pytest.raises(StoreError, match="is no wish"):
        wish_from_json(text)


def test_a_wish_is_read_back():
    wish = rest(smaller(NO_WISH))
    assert wish_from_json(wish_to_json(wish)) == wish
