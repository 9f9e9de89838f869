"""The agent's end of the line to its workers: one thread, one unix socket, any number of workers."""

from __future__ import annotations

import os
import selectors
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from elastic.link import Answer, Failure, Lines, pack

_REGROUP = {"control": "regroup"}


@dataclass(frozen=True, kw_only=True)
class Callbacks:
    """What the server calls, always from its own thread, one call at a time."""

    event: Callable[[str], None]
    failure: Callable[[int, Failure], None]
    """Given the worker's pid."""
    ask: Callable[[str, str | None], Answer]


@dataclass
class _Peer:
    socket: socket.socket
    lines: Lines = field(default_factory=Lines)
    pid: int = 0


class WorkerServer:
    """Listens until `stop`. The socket lies in a directory that only this user may enter."""

    def __init__(self, callbacks: Callbacks) -> None:
        self._callbacks = callbacks
        self._directory = Path(tempfile.mkdtemp(prefix="elastic-agent-"))
        self.path = str(self._directory / "socket")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen(64)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake_read, self._wake_write = os.pipe()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._peers: dict[int, _Peer] = {}
        self._lock = threading.Lock()
        self._regroup_asked = False
        self._thread = threading.Thread(target=self._run, name="elastic-worker-server", daemon=True)
        self._thread.start()

    def regroup(self) -> None:
        """Ask all workers to finish their step, save and end; those still starting up are asked as they connect."""
        with self._lock:
            self._regroup_asked = True
            peers = list(self._peers.values())
        for peer in peers:
            self._send(peer, _REGROUP)

    def begin_generation(self) -> None:
        """Forget earlier requests: the workers started from now on are new ones."""
        with self._lock:
            self._regroup_asked = False

    def stop(self) -> None:
        """Hang up on everyone and remove the socket."""
        os.write(self._wake_write, b"x")
        self._thread.join()
        for peer in self._peers.values():
            peer.socket.close()
        self._selector.close()
        self._listener.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj == self._wake_read:
                    return
                else:
                    self._read(key.fd)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        with self._lock:
            self._peers[connection.fileno()] = _Peer(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _read(self, fd: int) -> None:
        peer = self._peers[fd]
        try:
            data = peer.socket.recv(65536)
        except ConnectionResetError:
            data = b""
        if not data:
            self._selector.unregister(peer.socket)
            with self._lock:
                del self._peers[fd]
            peer.socket.close()
            return
        for message in peer.lines.feed(data):
            self._handle(peer, message)

    def _handle(self, peer: _Peer, message: dict[str, Any]) -> None:
        if "event" in message:
            self._callbacks.event(message["event"])
        elif "failure" in message:
            self._callbacks.failure(peer.pid, Failure(**message["failure"]))
        elif "hello" in message:
            peer.pid = message["hello"]["pid"]
            with self._lock:
                asked = self._regroup_asked
            if asked:
                self._send(peer, _REGROUP)
        elif "ask" in message:
            answer = self._callbacks.ask(message["ask"], message.get("value"))
            self._send(peer, {"id": message["id"], "answer": asdict(answer)})

    def _send(self, peer: _Peer, message: dict[str, Any]) -> None:
        try:
            peer.socket.sendall(pack(message))
        except OSError:
            # The worker died meanwhile; its end is noticed by the agent's watch on the process.
            return
