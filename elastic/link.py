"""The line between a worker and its node's agent: JSON lines over a unix socket.

Worker to agent:  hello · event · failure · ask (commit, record) · stays (out of its generation, ready for the next)
Agent to worker:  answer · control (see `Control`) · place (the next generation, for one that stays)

Workers never touch etcd: what must be agreed outside their process group goes through here. A worker without an
agent of ours (alone, or under another rendezvous backend) has a `NoLink`.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from elastic.errors import Fenced, Lack

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
    lacks: Lack = Lack.NOTHING
    """May be on nodes that are not here yet."""

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Failure:
        """Read back what was sent. Raises TypeError, ValueError."""
        return cls(**{**plain, "lacks": Lack(plain.get("lacks", ""))})


class Control(enum.StrEnum):
    """What an agent asks of its workers."""

    REGROUP = "regroup"
    """Finish the step; the membership changes after it."""
    LEAVE = "leave"
    """Finish the step, save, and end: this node goes."""
    OVER = "over"
    """The generation broke: whatever is waited for will not come."""
    KEEP = "keep"
    """To one that waits for the next generation: all nodes may be going. Save what you have, and end."""


@dataclass(frozen=True, kw_only=True)
class Stays:
    """A worker is out of its generation and keeps what it has for the next. `lost`: it broke; else all agreed."""

    generation: int
    lost: bool
    step: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Place:
    """The next generation for a worker that stays: its variables, and the files that its output goes to from here on
    ("": as before)."""

    environ: Mapping[str, str]
    stdout: str = ""
    stderr: str = ""


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

    @property
    def over(self) -> bool:
        """Whether the agent has said that the present generation broke. Never blocks."""
        ...

    @property
    def leave_wanted(self) -> bool:
        """Whether this node is to go after the step. Never blocks."""
        ...

    @property
    def keep_wanted(self) -> bool:
        """Whether there is nothing to wait for any more but to save. Never blocks."""
        ...

    def when_over(self, call: Callable[[], object]) -> None:
        """Have this called, once at least, when the agent says that the present generation broke; now, if it has.

        From this thread or another one. It must not block. One at a time: whoever was to be called before is not.
        """
        ...

    def send_event(self, line: str) -> None:
        """Pass on an encoded event record."""
        ...

    def send_failure(self, failure: Failure) -> None:
        """Say why this worker is about to end."""
        ...

    def send_stays(self, stays: Stays) -> None:
        """Say that this worker waits for the next generation."""
        ...

    def next_place(self, *, limit_s: float) -> Place | None:
        """Wait for the place in the next generation; None when there is none yet, or will be none (`keep_wanted`).
        Raises Fenced when the agent is gone."""
        ...

    def ask(self, what: str, *, value: str | None = None) -> Answer:
        """Ask and wait for the answer; one that does not come in time is not granted. Raises Fenced when the agent is
        gone."""
        ...

    def regroup_wanted(self) -> bool:
        """Whether the agent has asked for an end of the generation at a step boundary. Never blocks. Raises Fenced
        when the agent is gone."""
        ...

    def close(self) -> None:
        """Hang up."""
        ...


_GONE = "the agent of this worker is gone; a worker without its agent must not go on"


def _nothing() -> None:
    """What is done on news that nobody listens to."""


class NoLink:
    """No agent: nothing is sent, nothing is ever asked for."""

    present = False
    over = False
    leave_wanted = False
    keep_wanted = False

    def when_over(self, call: Callable[[], object]) -> None:
        """Nobody says so."""

    def send_event(self, line: str) -> None:
        """Do nothing."""

    def send_failure(self, failure: Failure) -> None:
        """Do nothing."""

    def send_stays(self, stays: Stays) -> None:
        """Do nothing."""

    def next_place(self, *, limit_s: float) -> Place | None:
        return None

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
    """The real line. A thread of its own hears what the agent says, so that it is heard in a collective, too.

    Events may be sent, and questions asked, from any thread; all else is the worker's main thread's.
    """

    present = True

    def __init__(self, path: str, *, rank: int, generation: int, pid: int, secret: str = "") -> None:
        """Connect. `secret`: by which the agent knows its workers. Raises Fenced when the agent is gone."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise Fenced(f"{_GONE} ({error.strerror or error} at {path})") from error
        self._sending = threading.Lock()
        self._heard = threading.Condition()
        self._answers: dict[int, Answer] = {}
        self._controls: set[Control] = set()
        self._when_over: Callable[[], object] = _nothing
        self._place: Place | None = None
        self._asked, self._awaited = 0, set[int]()
        self._gone = False
        self._owner = os.getpid()
        self._send({"hello": {"rank": rank, "generation": generation, "pid": pid, "secret": secret}})
        threading.Thread(target=self._listen, name="elastic-agent-link", daemon=True).start()

    @property
    def over(self) -> bool:
        return Control.OVER in self._controls

    @property
    def leave_wanted(self) -> bool:
        return Control.LEAVE in self._controls

    @property
    def keep_wanted(self) -> bool:
        return Control.KEEP in self._controls

    def when_over(self, call: Callable[[], object]) -> None:
        with self._heard:
            self._when_over = call
            said = self.over
        if said:
            call()

    def send_event(self, line: str) -> None:
        self._send({"event": line})

    def send_failure(self, failure: Failure) -> None:
        # An agent of an older version still hears what it knows of, so that it can tell of the difference.
        self._send({"failure": {name: value for name, value in asdict(failure).items() if name != "lacks" or value}})

    def send_stays(self, stays: Stays) -> None:
        self._send({"stays": asdict(stays)})

    def next_place(self, *, limit_s: float) -> Place | None:
        with self._heard:
            self._heard.wait_for(lambda: self._place is not None or self.keep_wanted or self._gone, limit_s)
            self._check()
            place, self._place = self._place, None
        return place

    def ask(self, what: str, *, value: str | None = None) -> Answer:
        with self._heard:
            self._asked += 1
            asked = self._asked
            self._awaited.add(asked)
        self._send({"ask": what, "id": asked, "value": value})
        with self._heard:
            self._heard.wait_for(lambda: asked in self._answers or self._gone, ANSWER_LIMIT_S)
            self._awaited.remove(asked)
            if asked in self._answers:
                return self._answers.pop(asked)
            self._check()
        # No reason to end: it may have been paused together with this worker, and nothing counts meanwhile.
        reason = f"the agent did not answer within {ANSWER_LIMIT_S:.0f} s; it may be stopped or overloaded"
        return Answer(granted=False, reason=reason)

    def regroup_wanted(self) -> bool:
        self._check()
        return bool(self._controls)

    def close(self) -> None:
        # Ends the wait of the thread that listens, which closing alone would not.
        if not self._forked:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    @property
    def _forked(self) -> bool:
        """Whether this is a child that the user's code forked: the line is its parent's, and ends with that one."""
        return os.getpid() != self._owner

    def _check(self) -> None:
        if self._gone:
            raise Fenced(_GONE)

    def _send(self, message: Mapping[str, Any]) -> None:
        if self._forked:
            return
        # A dead agent is found out where it matters, by ask() and by the death signal, not by losing an event.
        with self._sending, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(pack(message))

    def _listen(self) -> None:
        lines = Lines()
        while data := self._received():
            for message in lines.feed(data):
                with self._heard:
                    self._take(message)
                    call = self._when_over
                    self._heard.notify_all()
                if message.get("control") == Control.OVER:
                    call()
        with self._heard:
            self._gone = True
            self._heard.notify_all()

    def _received(self) -> bytes:
        try:
            return self._socket.recv(65536)
        except OSError:
            return b""  # it ended with something of ours unread, or this worker has hung up

    def _take(self, message: dict[str, Any]) -> None:
        if "control" in message:
            self._controls.add(Control(message["control"]))
        elif "place" in message:
            # What was asked for before belongs to the generation that is over.
            self._controls.clear()
            self._place = Place(**message["place"])
        elif message["id"] in self._awaited:
            self._answers[message["id"]] = Answer(**message["answer"])
