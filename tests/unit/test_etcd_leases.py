"""Renewals on one lasting stream, against a link made of queues: who is answered by what, and what a break means."""

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from elastic.rendezvous.etcd_leases import LeaseStream
from elastic.rendezvous.etcd_link import Answered, Unanswered


class Renewal(NamedTuple):
    """A request, and an answer."""

    ID: int
    TTL: int = 0


class Broken(Exception):
    """What this link's streams raise."""


class FakeStream:
    """Requests are taken from the iterator by a thread, as gRPC does; answers come from the test."""

    def __init__(self, requests):
        self.sent, self.answers = queue.SimpleQueue(), queue.SimpleQueue()
        self.reads = 0
        threading.Thread(target=lambda: [self.sent.put(one) for one in requests], daemon=True).start()

    def answer(self, lease, ttl):
        self.answers.put(Renewal(lease, ttl))

    def cancel(self):
        self.answers.put(Broken("cancelled"))

    def __iter__(self):
        return self

    def __next__(self):
        self.reads += 1
        answer = self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer


class FakeLink:
    rpc = SimpleNamespace(LeaseKeepAliveRequest=Renewal)
    rpc_error = Broken

    def __init__(self, *, timeout_s=10.0):
        self.streams = queue.SimpleQueue()
        self.opened, self._timeout_s = 0, timeout_s

    def attempt(self, _stub, once):
        return Answered(message=once(None, timeout=self._timeout_s, metadata=()), doubtful=False)

    def open_stream(self, _stub, _method, requests):
        self.opened += 1
        stream = FakeStream(requests)
        self.streams.put(stream)
        return stream


@pytest.fixture
def link():
    return FakeLink()


@pytest.fixture
def pool():
    with ThreadPoolExecutor(max_workers=4) as made:
        yield made


def test_many_leases_share_a_stream_that_nobody_reads_in_between(link, pool):
    leases = LeaseStream(link)
    first, second = pool.submit(leases.renew, 1), pool.submit(leases.renew, 2)
    stream = link.streams.get()
    assert {stream.sent.get().ID, stream.sent.get().ID} == {1, 2}
    stream.answer(2, 20)
    stream.answer(1, 10)
    assert (first.result(10), second.result(10)) == (10.0, 20.0)
    third = pool.submit(leases.renew, 1)
    stream.sent.get()
    stream.answer(1, 11)
    assert third.result(10) == 11.0
    assert link.opened == 1
    assert stream.reads == 3, "no read without a renewal under way"


def test_an_answer_is_for_the_request_that_was_sent_first(link, pool):
    leases = LeaseStream(link)
    first = pool.submit(leases.renew, 1)
    stream = link.streams.get()
    stream.sent.get()
    second = pool.submit(leases.renew, 1)
    stream.sent.get()
    stream.answer(1, 10)
    assert first.result(10) == 10.0
    assert not second.done(), "what was sent later was not answered yet"
    stream.answer(1, 0)
    assert second.result(10) == 0.0, "it has ended meanwhile"


def test_a_stream_that_broke_between_renewals_is_replaced_unnoticed(link, pool):
    leases = LeaseStream(link)
    done = pool.submit(leases.renew, 1)
    old = link.streams.get()
    old.answer(1, 10)
    done.result(10)
    old.answers.put(Broken("etcd was started again"))
    again = pool.submit(leases.renew, 1)
    link.streams.get().answer(1, 12)
    assert again.result(10) == 12.0
    assert link.opened == 2


def test_a_new_stream_that_breaks_tells_all_who_wait(link, pool):
    leases = LeaseStream(link)
    waiting = pool.submit(leases.renew, 1)
    stream = link.streams.get()
    stream.sent.get()
    stream.answers.put(Broken("no etcd there"))
    with pytest.raises(Broken, match="no etcd there"):
        waiting.result(10)


def test_silence_is_no_answer_and_ends_the_stream(pool):
    link = FakeLink(timeout_s=0.05)
    leases = LeaseStream(link)
    with pytest.raises(Unanswered, match=r"0\.05 s"):
        leases.renew(1)
    link.streams.get()
    late = pool.submit(leases.renew, 1)
    link.streams.get().answer(1, 10)
    assert late.result(10) == 10.0, "on a stream of its own: an answer to the first request must not be taken for it"


def test_closing_ends_the_stream(link, pool):
    leases = LeaseStream(link)
    done = pool.submit(leases.renew, 1)
    stream = link.streams.get()
    stream.answer(1, 10)
    done.result(10)
    leases.close()
    assert isinstance(stream.answers.get(timeout=10), Broken)
