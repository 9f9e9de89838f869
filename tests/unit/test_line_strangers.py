"""Who has no business on the line between a worker and its agent: strangers, and children of the worker's own."""

import contextlib
import os
import socket

import pytest

from elastic.link import pack
from tests.unit.test_line import FAILURE, LIMIT_S, Agent


@pytest.fixture
def agent():
    agent = Agent()
    yield agent
    agent.server.stop()


@pytest.mark.parametrize(
    "first",
    [{"hello": {"rank": 0, "generation": 1, "pid": 7}}, {"event": "x"}, {"hello": {"secret": 5}}, {"hello": 1}, [5], 7],
)
def test_who_does_not_begin_with_the_secret_is_no_worker(agent, caplog, first):
    agent.server.secret = "drawn"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(agent.server.path)
        stranger.sendall(pack(first) + pack({"event": "y"}) + pack({"ask": "commit", "id": 1, "value": None}))
        assert stranger.recv(1) == b""
    assert "does not know this agent's secret" in caplog.text
    assert "drawn" not in caplog.text
    assert (agent.events, agent.asked) == ([], [])
    link = agent.link()
    assert link.ask("record").granted
    link.close()


def test_a_child_that_the_users_code_forks_leaves_the_line_alone(agent):
    link = agent.link()
    assert link.ask("record").granted
    if (child := os.fork()) == 0:
        link.send_failure(FAILURE)
        link.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert link.ask("record").granted
    assert not agent.failures
    link.close()


def test_json_that_is_nested_too_deeply_is_no_message(agent, caplog):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        stranger.connect(agent.server.path)
        stranger.sendall(b"[" * 200_000 + b"\n")
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    assert agent.server.hear_out(limit_s=LIMIT_S), "it serves on"
    assert "no message" in caplog.text
