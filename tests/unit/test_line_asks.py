"""What workers ask is answered beside what they tell: an answer that takes its time holds up nobody but who asked."""

import contextlib
import socket
import threading
import time

import pytest

from elastic.errors import Fenced
from elastic.launch.server import LAST_ANSWER_S
from elastic.link import Answer, Failure, Lines, Stays, pack
from tests.unit.test_line import LIMIT_S, Agent, until

EVENT = "e" * 270
"""As long as that of a step."""
MORE_THAN_FITS = 4_000_000
"""Bytes that no socket holds for one who does not read."""


class Held:
    """An agent whose answers wait for `release`; each tells who asked."""

    def __init__(self):
        self.agent, self.release, self.answered = Agent(), threading.Event(), []
        self.agent.answer = self.answer

    def answer(self, what, value):
        assert self.release.wait(LIMIT_S)
        self.answered.append(value)
        return Answer(granted=True, reason="", value=value)

    def asking(self, link, value, heard):
        """Ask in a thread of its own, which is returned; what came of it is added to `heard`."""

        def ask():
            try:
                heard.append(link.ask("commit", value=value).value)
            except Fenced:
                heard.append("gone")

        thread = threading.Thread(target=ask)
        thread.start()
        return thread


@pytest.fixture
def held():
    held = Held()
    yield held
    held.release.set()
    held.agent.server.stop()
    held.agent.server._answering.join(LIMIT_S)
    assert not held.agent.server._answering.is_alive()


def beside(work):
    """Do it in a thread of its own, so that what would wait for ever is seen to."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    return not thread.is_alive()


def connected(agent):
    """By pid; of a copy, since the server's thread may be letting somebody in."""
    return {peer.pid for peer in list(agent.server._peers.values())}


def test_a_worker_trains_on_while_its_question_waits(held):
    agent, heard = held.agent, []
    asker, other = agent.link(pid=1), agent.link(pid=2)
    asking = held.asking(asker, "a", heard)
    until(lambda: agent.asked)
    assert beside(lambda: [asker.send_event(f"{EVENT}{number}") for number in range(2_000)]), "an event had to wait"
    assert beside(lambda: [other.send_event(EVENT) for _ in range(2_000)]), "an event of another worker had to wait"
    assert agent.server.hear_out(limit_s=LIMIT_S)
    assert [each for each in agent.events if each != EVENT] == [f"{EVENT}{number}" for number in range(2_000)]
    assert len(agent.events) == 4_000
    assert (held.answered, heard) == ([], []), "all that was heard before the answer"
    held.release.set()
    asking.join(LIMIT_S)
    assert heard == ["a"]
    for link in (asker, other):
        link.close()


def test_that_a_worker_stays_or_fails_is_heard_while_its_question_waits(held):
    agent, heard = held.agent, []
    link = agent.link(pid=7)
    asking = held.asking(link, "a", heard)
    until(lambda: agent.asked)
    stays = Stays(generation=1, lost=True, step=5, text="a peer went away")
    link.send_stays(stays)
    until(lambda: agent.staying == {7: stays})
    failure = Failure(exit_code=1, step=5, signature="", text="")
    link.send_failure(failure)
    assert agent.server.hear_out(limit_s=LIMIT_S)
    assert agent.failures == {7: failure}
    late = agent.link(pid=8)
    assert agent.server.hear_out(limit_s=LIMIT_S)
    assert connected(agent) == {7, 8}, "newcomers are let in"
    assert (held.answered, heard) == ([], [])
    held.release.set()
    asking.join(LIMIT_S)
    for each in (link, late):
        each.close()


def test_questions_are_answered_one_at_a_time_in_the_order_they_came_in(held):
    agent, heard = held.agent, []
    links = [agent.link(pid=pid) for pid in range(8)]
    threads = []
    for number, link in enumerate(links):
        threads.append(held.asking(link, str(number), heard))
        until(lambda n=number: agent.asked and agent.server._questions.qsize() == n)
    assert agent.asked == [("commit", "0")], "one at a time"
    held.release.set()
    for thread in threads:
        thread.join(LIMIT_S)
    assert held.answered == [str(number) for number in range(8)]
    assert sorted(heard) == held.answered
    for link in links:
        link.close()


def test_who_hangs_up_is_answered_all_the_same_and_holds_up_nobody(held):
    agent, heard = held.agent, []
    first, gone, last = (agent.link(pid=pid) for pid in range(3))
    first._send({"ask": "commit", "id": 1, "value": "under way"})
    until(lambda: agent.asked)
    gone._send({"ask": "commit", "id": 1, "value": "in the queue"})
    until(lambda: agent.server._questions.qsize() == 1)
    for link in (first, gone):
        link.close()
    until(lambda: connected(agent) == {2})
    # Whoever comes next is given the numbers of their sockets, and none of their answers.
    with contextlib.ExitStack() as stack:
        others = [each for _ in range(2) for each in map(stack.enter_context, socket.socketpair())]
        asking = held.asking(last, "last", heard)
        held.release.set()
        asking.join(LIMIT_S)
        assert held.answered == ["under way", "in the queue", "last"]
        assert heard == ["last"]
        for each in others:
            each.setblocking(False)
            with pytest.raises(BlockingIOError):
                each.recv(1)
    last.close()


def test_stopping_does_not_wait_for_an_answer_that_takes_its_time(held):
    agent, heard = held.agent, []
    links = [agent.link(pid=pid) for pid in range(2)]
    threads = [held.asking(links[0], "under way", heard)]
    until(lambda: agent.asked)
    threads.append(held.asking(links[1], "in the queue", heard))
    until(lambda: agent.server._questions.qsize() == 1)
    began_s = time.monotonic()
    assert beside(agent.server.stop)
    assert time.monotonic() - began_s < LAST_ANSWER_S + 4.0
    assert held.answered == []
    for thread in threads:
        thread.join(LIMIT_S)
    assert heard == ["gone", "gone"]
    held.release.set()
    agent.server._answering.join(LIMIT_S)
    assert held.answered == ["under way"], "what was not begun is left"
    agent.server = Agent().server  # for the fixture to stop
    for link in links:
        link.close()


def test_stopping_lets_an_answer_that_is_about_to_come_reach_its_asker(held, monkeypatch):
    monkeypatch.setattr("elastic.launch.server.LAST_ANSWER_S", LIMIT_S)
    agent, heard = held.agent, []
    link = agent.link()
    asking = held.asking(link, "a", heard)
    until(lambda: agent.asked)
    stopping = threading.Thread(target=agent.server.stop)
    stopping.start()
    until(lambda: not agent.server._hearing.is_alive())
    held.release.set()
    stopping.join(LIMIT_S)
    asking.join(LIMIT_S)
    assert heard == ["a"]
    agent.server = Agent().server
    link.close()


@pytest.mark.parametrize("ending", ["hangs up", "stop"])
def test_who_does_not_read_its_answer_holds_up_nobody(ending, monkeypatch):
    monkeypatch.setattr("elastic.launch.server.LAST_ANSWER_S", 0.05)
    agent = Agent()
    agent.answer = lambda what, value: Answer(granted=True, reason="", value="x" * (MORE_THAN_FITS if value else 1))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as worker:
        worker.connect(agent.server.path)
        hello = {"hello": {"rank": 0, "generation": 1, "pid": 7}}
        worker.sendall(pack(hello) + pack({"ask": "record", "id": 1, "value": "much"}))
        until(lambda: any(peer.sending.locked() for peer in list(agent.server._peers.values())) and agent.asked)
        link = agent.link(pid=8)
        link.send_event("x")
        until(lambda: agent.events)
        if ending == "hangs up":
            worker.shutdown(socket.SHUT_WR)
            assert link.ask("record").granted
        assert beside(agent.server.stop)
        assert not Lines().feed(b"".join(iter(lambda: worker.recv(65536), b""))), "the rest is not sent"
        link.close()
    agent.server._answering.join(LIMIT_S)
    assert not agent.server._answering.is_alive()


def test_a_question_without_a_number_or_an_answer_that_is_no_json_ends_nothing(caplog):
    agent = Agent()
    agent.answer = lambda what, value: Answer(granted=True, reason="", value=object() if value else None)
    link = agent.link()
    link._send({"ask": "record"})
    assert agent.server.hear_out(limit_s=LIMIT_S)
    assert "could not be handled" in caplog.text
    link._send({"ask": "record", "id": 0, "value": "odd"})
    assert link.ask("record").granted, "the next is answered"
    assert "could not be sent" in caplog.text
    link.close()
    agent.server.stop()
