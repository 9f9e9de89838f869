"""The line between workers and their agent, both real ends over a real unix socket."""

import json
import os
import socket
import threading
from pathlib import Path

import pytest

from elastic.errors import Fenced
from elastic.launch.server import Callbacks, WorkerServer
from elastic.link import AgentLink, Answer, Control, Failure, Lines, NoLink, Place, Stays, pack
from tests.harness import until as wait

LIMIT_S = 10.0
FAILURE = Failure(exit_code=1, step=7, signature="abc", text="Traceback …\nZeroDivisionError: ü")


class Agent:
    """What an agent heard, and what it answers."""

    def __init__(self):
        self.events, self.failures, self.asked, self.staying = [], {}, [], {}
        self.answer = lambda what, value: Answer(granted=True, reason="", value=value)
        self.server = WorkerServer(
            Callbacks(event=self.events.append, failure=self.failed, ask=self.ask, stays=self.stays)
        )

    def failed(self, pid, failure):
        self.failures[pid] = failure

    def stays(self, pid, stays):
        self.staying[pid] = stays

    def ask(self, what, value):
        self.asked.append((what, value))
        return self.answer(what, value)

    def link(self, *, rank=0, pid=100):
        return AgentLink(self.server.path, rank=rank, generation=1, pid=pid, secret=self.server.secret)


@pytest.fixture
def agent():
    before = len(os.listdir("/proc/self/fd"))
    agent = Agent()
    yield agent
    agent.server.stop()
    assert not Path(agent.server.path).parent.exists()
    assert len(os.listdir("/proc/self/fd")) == before, "a file descriptor was left open"


def until(condition):
    """Wait for what another thread brings about."""
    wait.until(condition, what="what another thread does", limit_s=LIMIT_S, look_s=0.001)


def test_events_and_last_words_are_heard_out_after_the_worker_has_gone(agent):
    for pid in range(100, 120):
        link = agent.link(pid=pid)
        link.send_event(f"event of {pid}")
        link.send_failure(FAILURE)
        link.close()
        assert agent.server.hear_out(limit_s=LIMIT_S)
        assert agent.failures[pid] == FAILURE
        assert agent.events[-1] == f"event of {pid}"


def test_hearing_out_gives_up_while_what_was_heard_takes_its_time(agent):
    release, begun = threading.Event(), threading.Event()
    agent.failed = lambda pid, failure: begun.set() or release.wait(LIMIT_S)
    agent.server._callbacks = Callbacks(
        event=agent.events.append, failure=agent.failed, ask=agent.ask, stays=agent.stays
    )
    link = agent.link()
    link.send_failure(FAILURE)
    assert begun.wait(LIMIT_S)
    assert not agent.server.hear_out(limit_s=0.01)
    release.set()
    assert agent.server.hear_out(limit_s=LIMIT_S), "it serves on"
    link.close()


def test_ask_and_answer(agent):
    agent.answer = lambda what, value: Answer(granted=False, reason="no", stale=True, value=None)
    link = agent.link()
    assert link.ask("commit", value='{"a": "ü"}') == Answer(granted=False, reason="no", stale=True)
    agent.answer = lambda what, value: Answer(granted=True, reason="", value="x" * 300_000)
    assert link.ask("record").value == "x" * 300_000, "larger than a socket's buffer"
    assert agent.asked == [("commit", '{"a": "ü"}'), ("record", None)]
    link.close()


def test_an_answer_that_cannot_be_given_is_a_refusal_and_the_server_lives_on(agent):
    def broken(what, value):
        raise RuntimeError("etcd is away")

    agent.answer = broken
    link = agent.link()
    answer = link.ask("record")
    assert (answer.granted, answer.stale) == (False, False)
    assert "etcd is away" in answer.reason
    agent.answer = lambda what, value: Answer(granted=True, reason="back")
    assert link.ask("record").reason == "back"
    link.close()


def test_what_a_callback_raises_does_not_end_the_server(agent, caplog):
    agent.events = None  # so that taking an event raises
    agent.server._callbacks = Callbacks(
        event=lambda line: 1 / 0, failure=agent.failed, ask=agent.ask, stays=agent.stays
    )
    link = agent.link()
    link.send_event("x")
    assert link.ask("record").granted
    assert "could not be handled" in caplog.text
    link.close()


def test_garbage_hangs_up_on_its_sender_only(agent, caplog):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(agent.server.path)
        stranger.sendall(b"GET / HTTP/1.0\n")
        assert stranger.recv(1) == b""
    assert "no message" in caplog.text
    link = agent.link()
    assert link.ask("record").granted
    link.close()


def test_regroup_reaches_those_connected_and_those_still_to_come(agent):
    early = agent.link(pid=1)
    assert not early.regroup_wanted()
    assert agent.server.hear_out(limit_s=LIMIT_S)
    agent.server.ask_all(Control.REGROUP)
    late = agent.link(pid=2)
    until(early.regroup_wanted)
    until(late.regroup_wanted)
    assert late.regroup_wanted(), "it stays wanted"
    assert late.ask("record").granted, "and asking goes on meanwhile"
    agent.server.begin_generation()
    fresh = agent.link(pid=3)
    assert fresh.ask("record").granted  # its hello was handled before
    assert not fresh.regroup_wanted()
    for link in (early, late, fresh):
        link.close()


def test_what_is_asked_between_connection_and_hello_is_heard_once(agent):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as worker:
        worker.connect(agent.server.path)
        until(lambda: agent.server._peers)
        agent.server.ask_all(Control.OVER)
        assert not agent.server.ask(7, Control.KEEP), "nobody has said to be this worker"
        worker.sendall(pack({"hello": {"rank": 0, "generation": 1, "pid": 7}}))
        assert agent.server.hear_out(limit_s=LIMIT_S)
        assert agent.server.ask(7, Control.KEEP)
        worker.shutdown(socket.SHUT_WR)
        heard = b"".join(iter(lambda: worker.recv(4096), b""))
        assert [message["control"] for message in Lines().feed(heard)] == [Control.OVER, Control.KEEP]


def test_many_workers_at_once(agent):
    def work(rank):
        link = agent.link(rank=rank, pid=rank)
        for number in range(20):
            link.send_event(f"{rank}/{number}")
            assert link.ask("commit", value=f"{rank}/{number}").value == f"{rank}/{number}"
        link.close()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(16)]
    for thread in threads:
        thread.start()
    agent.server.ask_all(Control.REGROUP)
    for thread in threads:
        thread.join()
    assert agent.server.hear_out(limit_s=LIMIT_S)
    for rank in range(16):
        assert [e for e in agent.events if e.startswith(f"{rank}/")] == [f"{rank}/{number}" for number in range(20)]
    assert not agent.server._peers, "who hung up is forgotten"


def test_a_worker_that_dies_before_its_answer(agent):
    link = agent.link()
    link._send({"ask": "record", "id": 1, "value": None})
    link.close()
    assert agent.server.hear_out(limit_s=LIMIT_S)
    other = agent.link()
    assert other.ask("record").granted
    other.close()


def test_a_worker_whose_agent_is_gone_is_fenced():
    agent = Agent()
    link, path = agent.link(), agent.server.path
    agent.server.stop()
    with pytest.raises(Fenced, match="agent of this worker is gone"):
        link.regroup_wanted()
    with pytest.raises(Fenced, match="agent of this worker is gone"):
        link.ask("record")
    link.send_event("lost, and no error")
    link.close()
    with pytest.raises(Fenced, match=r"agent of this worker is gone.*No such file"):
        AgentLink(path, rank=0, generation=1, pid=1)


def test_stopping_does_not_wait_for_what_is_still_to_be_read():
    for _ in range(50):
        agent = Agent()
        links = [agent.link(pid=pid) for pid in range(3)]
        for link in links:
            link.send_event("x")
        agent.server.stop()
        for link in links:
            link.close()


def test_an_agent_that_ends_with_something_unread_is_gone_too(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        link = AgentLink(str(tmp_path / "s"), rank=0, generation=1, pid=1)
        listener.accept()[0].close()  # the hello was never read: the kernel says "reset"
        with pytest.raises(Fenced, match="gone"):
            until(link.regroup_wanted)
        link.close()


def test_an_agent_that_does_not_answer_in_time_ends_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr("elastic.link.ANSWER_LIMIT_S", 0.01)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        link = AgentLink(str(tmp_path / "s"), rank=0, generation=1, pid=1)
        answer = link.ask("commit")
        assert (answer.granted, answer.stale) == (False, False)
        assert "did not answer" in answer.reason
        connection, _ = listener.accept()
        monkeypatch.setattr("elastic.link.ANSWER_LIMIT_S", LIMIT_S)

        def answer_both() -> None:
            lines = Lines()
            while not any(message.get("id") == 2 for message in lines.feed(connection.recv(65536))):
                pass
            # What it says first belongs to a question that nobody asks any more.
            connection.sendall(pack({"id": 1, "answer": {"granted": True, "reason": "late"}}))
            connection.sendall(pack({"id": 2, "answer": {"granted": False, "reason": "in time"}}))

        agent = threading.Thread(target=answer_both)
        agent.start()
        assert link.ask("commit").reason == "in time"
        agent.join(LIMIT_S)
        link.close()
        connection.close()


def test_lines_come_whole_however_they_are_torn():
    messages = [{"event": "a\nb ü \u2028"}, {"ask": "x", "id": 1, "value": None}]
    data = b"".join(pack(message) for message in messages)
    for width in (1, 2, 7, len(data)):
        lines, got = Lines(), []
        for start in range(0, len(data), width):
            got += lines.feed(data[start : start + width])
        assert got == messages
    with pytest.raises(json.JSONDecodeError):
        Lines().feed(b"{torn\n")


def test_a_worker_without_an_agent():
    link = NoLink()
    link.send_event("x")
    link.send_failure(FAILURE)
    assert not link.regroup_wanted()
    assert not link.ask("record").granted
    assert not link.present
    link.close()


def test_a_worker_that_stays_is_given_its_place_and_forgets_what_was_asked_before(agent):
    link = agent.link(pid=7)
    heard = []
    link.when_over(lambda: heard.append("over"))
    agent.server.ask_all(Control.OVER)
    until(lambda: heard)
    assert link.over
    assert link.regroup_wanted()
    assert not link.leave_wanted
    assert link.next_place(limit_s=0.01) is None
    stays = Stays(generation=1, lost=True, step=5, text="a peer went away")
    link.send_stays(stays)
    until(lambda: agent.staying)
    assert agent.staying == {7: stays}
    agent.server.begin_generation()
    place = Place(environ={"RANK": "1", "WORLD_SIZE": "2"}, stdout="/tmp/out")
    assert agent.server.place(7, place)
    assert not agent.server.place(8, place), "nobody of that pid is there"
    assert link.next_place(limit_s=LIMIT_S) == place
    assert not link.regroup_wanted()
    assert link.next_place(limit_s=0.01) is None, "it is handed out once"
    agent.server.ask_all(Control.LEAVE)
    until(lambda: link.leave_wanted)
    link.close()


def test_that_it_is_over_is_heard_whichever_comes_first(agent):
    link, heard = agent.link(pid=7), []
    assert agent.server.hear_out(limit_s=LIMIT_S), "the hello is handled: the agent knows whom it gives a place"
    link.when_over(lambda: heard.append("of the last"))
    agent.server.ask_all(Control.OVER)
    until(lambda: heard)
    link.when_over(lambda: heard.append("late"))
    assert heard == ["of the last", "late"], "it had been said already"
    agent.server.ask_all(Control.OVER)
    until(lambda: len(heard) > 2)
    assert heard[2:] == ["late"]
    assert agent.server.place(7, Place(environ={}))
    assert link.next_place(limit_s=LIMIT_S) is not None
    link.when_over(lambda: heard.append("of the next"))
    assert len(heard) == 3, "what was said of the last generation is not of the next"
    link.close()


def test_waiting_for_a_place_ends_when_the_agent_is_gone(agent):
    link = agent.link(pid=9)
    threading.Timer(0.05, agent.server.stop).start()
    with pytest.raises(Fenced, match="agent of this worker is gone"):
        link.next_place(limit_s=LIMIT_S)
    agent.server = WorkerServer(agent.server._callbacks)
    link.close()
