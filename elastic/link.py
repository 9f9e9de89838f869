"""The line between a worker and its node's agent: JSON lines over a unix socket.

Worker to agent:  hello · event · failure · ask (commit, record)
Agent to worker:  answer · control (regroup: finish the step, save, and end; you will be started again)

Workers never touch etcd: what must be agreed outside their process group goes through here. A worker without an
agent of ours (alone, or under another rendezvous backend) has a `NoLink`.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from elastic.errors import Fenced

ANSWER_LIMIT_S = 30.0
"""Longest wait for an answer. The agent itself gives up on etcd well before."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a worker ends, told before it does. `signature` is equal for two failures of the same kind and place."""

    exit_code: int
    step: int
    signature: str
    text: str
    node_local: bool = False
    """The worker knows that its node is to blame: the others may do without it."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the agent said to a request. `value` is JSON text or None. `stale`: a newer generation exists."""

    granted: bool
    reason: str
    stale: bool = False
    value: str | None = None


class Link(Protocol):
    """What a worker can tell and ask its agent."""

    @property
    def present(self) -> bool:
        """Whether there is an agent at the other end."""
        ...

    def send_event(self, line: str) -> None:
        """Pass on an encoded event record."""
        ...

    def send_failure(self, failure: Failure) -> None:
        """Say why this worker is about to end."""
        ...

    def ask(self, what: str, *, value: str | None = None) -> Answer:
        """Ask and wait for the answer; one that does not come in time is not granted. Raises Fenced when the agent is
        gone."""
        ...

    def regroup_wanted(self) -> bool:
        """Whether the agent has asked for a regroup at a step boundary. Never blocks."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


_GONE = "the agent of this worker is gone; a worker without its agent must not go on"


class NoLink:
    """No agent: nothing is sent, nothing is ever asked for."""

    present = False

    def send_event(self, line: str) -> None:
        """Do nothing."""

    def send_failure(self, failure: Failure) -> None:
        """Do nothing."""

    def ask(self, what: str, *, value: str | None = None) -> Answer:
        return Answer(granted=False, reason="there is no agent to ask")

    def regroup_wanted(self) -> bool:
        return False

    def close(self) -> None:
        """Do nothing."""


class Lines:
    """Whole JSON lines out of a stream of bytes."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Take bytes as they come and return the messages that are complete now."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines if line]


def pack(message: Mapping[str, Any]) -> bytes:
    """One message as a line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class AgentLink:
    """The real line. Events may be sent from any thread; all else is the worker's main thread's."""

    present = True

    def __init__(self, path: str, *, rank: int, generation: int, pid: int) -> None:
        """Connect. Raises Fenced when the agent is gone."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise Fenced(f"{_GONE} ({error.strerror or error} at {path})") from error
        self._sending = threading.Lock()
        self._lines = Lines()
        self._answers: dict[int, dict[str, Any]] = {}
        self._asked = 0
        self._regroup = False
        self._send({"hello": {"rank": rank, "generation": generation, "pid": pid}})

    def send_event(self, line: str) -> None:
        self._send({"event": line})

    def send_failure(self, failure: Failure) -> None:
        self._send({"failure": asdict(failure)})

    def ask(self, what: str, *, value: str | None = None) -> Answer:
        self._asked += 1
        self._send({"ask": what, "id": self._asked, "value": value})
        while self._asked not in self._answers:
            if not self._receive(ANSWER_LIMIT_S):
                # No reason to end: it may have been paused together with this worker, and nothing counts meanwhile.
                reason = f"the agent did not answer within {ANSWER_LIMIT_S:.0f} s; it may be stopped or overloaded"
                return Answer(granted=False, reason=reason)
        answer = self._answers.pop(self._asked)
        return Answer(**answer)

    def regroup_wanted(self) -> bool:
        while select.select([self._socket], [], [], 0)[0]:
            self._receive(0)
        return self._regroup

    def close(self) -> None:
        self._socket.close()

    def _send(self, message: Mapping[str, Any]) -> None:
        # A dead agent is found out where it matters, by ask() and by the death signal, not by losing an event.
        with self._sending, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(pack(message))

    def _receive(self, limit_s: float) -> bool:
        """Take in what comes within the limit; whether anything did. Raises Fenced when the agent is gone."""
        if not select.select([self._socket], [], [], limit_s)[0]:
            return False
        try:
            data = self._socket.recv(65536)
        except ConnectionResetError:
            data = b""  # it ended with something of ours unread
        if not data:
            raise Fenced(_GONE)
        for message in self._lines.feed(data):
            if "control" in message:
                self._regroup = True
            elif message["id"] == self._asked:
                self._answers[message["id"]] = message["answer"]
        return True
