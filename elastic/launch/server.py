"""The agent's end of the line to its workers: one unix socket, any number of workers, two threads.

One thread hears what they tell; the other answers what they ask, which takes as long as etcd does. Were it one, events
would fill the socket meanwhile, and a worker that trains on would wait in sending one.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import queue
import selectors
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from elastic.link import Answer, Control, Failure, Lines, Place, Stays, pack

logger = logging.getLogger(__name__)

LAST_ANSWER_S = 1.0
"""How long `stop` waits for an answer under way: etcd may be away, and nobody goes on with it."""


@dataclass(frozen=True, kw_only=True)
class Callbacks:
    """What the server calls: `ask` from one thread of its own, all else from another, each one call at a time.

    What they raise is logged, no more; whoever asks is refused then. `ask` alone may take long.
    """

    event: Callable[[str], None]
    failure: Callable[[int, Failure], None]
    """Given the worker's pid."""
    ask: Callable[[str, str | None], Answer]
    """Given in the order that they came in. Who asked may have hung up meanwhile, or be in another generation."""
    stays: Callable[[int, Stays], None]
    """Given the worker's pid."""


@dataclass
class _Peer:
    socket: socket.socket
    lines: Lines = field(default_factory=Lines)
    pid: int = 0
    known: bool = False
    """Whether it has said hello, with this agent's secret."""
    sending: threading.Lock = field(default_factory=threading.Lock)
    """Answers and requests come from different threads; a line must not end up inside another."""


@dataclass(frozen=True, kw_only=True)
class _Question:
    peer: _Peer
    id: int
    what: str
    value: str | None


class WorkerServer:
    """Listens until `stop`. The socket lies in a directory that only this user may enter."""

    def __init__(self, callbacks: Callbacks, *, secret: str = "") -> None:
        """`secret`: who does not begin with it is no worker of this agent's."""
        self._callbacks, self.secret = callbacks, secret
        self._directory = Path(tempfile.mkdtemp(prefix="elastic-agent-"))
        self.path = str(self._directory / "socket")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen(64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._peers: dict[int, _Peer] = {}
        self._lock = threading.Lock()
        self._caught_up = threading.Condition(self._lock)
        self._hearings_asked = 0
        self._hearings_done = 0
        self._asked: Control | None = None
        self._stopping = False
        self._questions: queue.SimpleQueue[_Question | None] = queue.SimpleQueue()
        self._hearing = threading.Thread(target=self._run, name="elastic-worker-server", daemon=True)
        self._answering = threading.Thread(target=self._answer_all, name="elastic-worker-asks", daemon=True)
        self._hearing.start()
        self._answering.start()

    def ask_all(self, control: Control) -> None:
        """Ask something of all workers; those still starting up are asked as they connect."""
        with self._lock:
            self._asked = control
            peers = [peer for peer in self._peers.values() if peer.known]
        for peer in peers:
            self._send(peer, {"control": control})

    def begin_generation(self) -> None:
        """Forget earlier requests: they were meant for the generation before."""
        with self._lock:
            self._asked = None

    def ask(self, pid: int, control: Control) -> bool:
        """Ask something of one worker; False where it has hung up."""
        return self._tell(pid, {"control": control})

    def place(self, pid: int, place: Place) -> bool:
        """Give a worker that stays its place in the next generation; False where it has hung up."""
        return self._tell(pid, {"place": asdict(place)})

    def hear_out(self, *, limit_s: float) -> bool:
        """Wait until all that workers told before is handled, the last words of one that has just ended too.

        What they asked may still wait for its answer. False when the limit ran out first: the machine is overloaded.
        """
        with self._caught_up:
            self._hearings_asked += 1
            wanted = self._hearings_asked
            os.write(self._wake_write, b"x")
            return self._caught_up.wait_for(lambda: self._hearings_done >= wanted, limit_s)

    def stop(self) -> None:
        """Hang up on everyone and remove the socket. What was asked and not begun to be answered is left; an answer
        that takes longer than LAST_ANSWER_S is sent to nobody."""
        self._stopping = True
        os.write(self._wake_write, b"x")
        self._questions.put(None)
        self._hearing.join()
        self._answering.join(LAST_ANSWER_S)
        for peer in self._peers.values():
            _close(peer)
        self._selector.close()
        self._listener.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _tell(self, pid: int, message: dict[str, Any]) -> bool:
        with self._lock:
            peer = next((peer for peer in self._peers.values() if peer.pid == pid), None)
        if peer is not None:
            self._send(peer, message)
        return peer is not None

    def _run(self) -> None:
        while not self._stopping:
            keys = [key for key, _ in self._selector.select()]
            self._serve(keys)
            if any(key.fd == self._wake_read for key in keys):
                self._catch_up()

    def _catch_up(self) -> None:
        """Handle what waits until nothing does; then whoever had ended before is heard out."""
        os.read(self._wake_read, 4096)
        with self._lock:
            asked = self._hearings_asked
        while not self._stopping and (keys := self._waiting()):
            self._serve(keys)
        with self._caught_up:
            self._hearings_done = asked
            self._caught_up.notify_all()

    def _waiting(self) -> list[selectors.SelectorKey]:
        return [key for key, _ in self._selector.select(0) if key.fd != self._wake_read]

    def _serve(self, keys: list[selectors.SelectorKey]) -> None:
        for key in keys:
            if self._stopping:
                return
            if key.fileobj is self._listener:
                self._accept()
            elif key.fd != self._wake_read:
                self._read(self._peers[key.fd])

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            logger.warning("a worker could not be let in: %s", error)
            return
        with self._lock:
            self._peers[connection.fileno()] = _Peer(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, peer: _Peer) -> None:
        try:
            data = peer.socket.recv(65536)
            messages = peer.lines.feed(data)
            self._know(peer, messages)
        except ConnectionResetError:
            data, messages = b"", []
        except (ValueError, RecursionError) as error:
            logger.warning("the worker with pid %d sent what is no message (%s); hanging up", peer.pid, error)
            data, messages = b"", []
        for message in messages:
            try:
                self._handle(peer, message)
            except Exception:  # whatever it is: this thread serves all workers, and nobody would see it end
                logger.exception("a message of the worker with pid %d could not be handled", peer.pid)
        if not data:
            self._hang_up(peer)

    def _know(self, peer: _Peer, messages: Sequence[Any]) -> None:
        """Raises ValueError for a stranger, who does not begin with this agent's secret."""
        if peer.known or not messages:
            return
        hello = messages[0].get("hello") if isinstance(messages[0], dict) else None
        told = hello.get("secret", "") if isinstance(hello, dict) else None
        if not isinstance(told, str) or not hmac.compare_digest(told.encode(), self.secret.encode()):
            raise ValueError("it does not know this agent's secret")

    def _hang_up(self, peer: _Peer) -> None:
        self._selector.unregister(peer.socket)
        with self._lock:
            del self._peers[peer.socket.fileno()]
        _close(peer)

    def _handle(self, peer: _Peer, message: dict[str, Any]) -> None:
        if "event" in message:
            self._callbacks.event(message["event"])
        elif "failure" in message:
            self._callbacks.failure(peer.pid, Failure.from_plain(message["failure"]))
        elif "hello" in message:
            with self._lock:  # together, so that `ask_all` reaches it either itself or by this, and never twice
                peer.pid, peer.known, asked = message["hello"]["pid"], True, self._asked
            if asked is not None:
                self._send(peer, {"control": asked})
        elif "stays" in message:
            self._callbacks.stays(peer.pid, Stays(**message["stays"]))
        elif "ask" in message:
            question = _Question(peer=peer, id=message["id"], what=message["ask"], value=message.get("value"))
            self._questions.put(question)

    def _answer_all(self) -> None:
        """One after the other. Who has hung up is answered, too: what it wanted to count may count without it."""
        while (question := self._questions.get()) is not None and not self._stopping:
            try:
                self._send(question.peer, {"id": question.id, "answer": asdict(self._answer(question))})
            except Exception:  # whatever it is: this thread answers all workers, and nobody would see it end
                logger.exception("the answer to %r could not be sent", question.what)

    def _answer(self, question: _Question) -> Answer:
        try:
            return self._callbacks.ask(question.what, question.value)
        except Exception as error:  # noqa: BLE001 - because the worker waits for an answer, whatever went wrong
            logger.warning("the request %r of a worker failed: %s", question.what, error)
            return Answer(granted=False, reason=f"{type(error).__name__}: {error}")

    def _send(self, peer: _Peer, message: dict[str, Any]) -> None:
        try:
            with peer.sending:
                peer.socket.sendall(pack(message))
        except OSError:
            # The worker died meanwhile; its end is noticed by the agent's watch on the process.
            return


def _close(peer: _Peer) -> None:
    with contextlib.suppress(OSError):
        peer.socket.shutdown(socket.SHUT_RDWR)  # frees the thread that waits in sending to one that does not read
    with peer.sending:  # or the number would be that of another file by the time that a thread writes to it
        peer.socket.close()
