"""A TCP proxy that misbehaves on request: slow, silent in one direction or both, half-open, or cut off.

Each fault counts what it did (`lost_bytes`, `delayed`, `reset`), so that a test can prove that it fired.
"""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import socket
import threading
from types import TracebackType
from typing import Self

from elastic.clock import SYSTEM_CLOCK


@dataclasses.dataclass(eq=False)
class _Line:
    """One client's connection. `mute_*`: what comes from there vanishes, while both ends think that all is well."""

    client: socket.socket
    server: socket.socket
    mute_client: bool = False
    mute_server: bool = False


class Proxy:
    """Stands before `target` (`host:port`) on a port of its own. A context manager."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host.strip("[]"), int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._lines: set[_Line] = set()
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()
        self._mute_client = self._mute_server = False
        self._refuse = False
        self.delay_s = 0.0
        self.lost_bytes = self.delayed = self.reset = self.accepted = 0

    @property
    def endpoint(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._spawn(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset_all()
        for thread in self._threads:
            thread.join(5)

    def lose_answers(self) -> None:
        """What the server says on the connections of now vanishes; new connections are well."""
        with self._lock:
            for line in self._lines:
                line.mute_server = True

    def mute(self, *, requests: bool = True, answers: bool = True) -> None:
        """Half-open: connections, new ones too, stay, but what is said in these directions vanishes, until `heal`."""
        with self._lock:
            self._mute_client, self._mute_server = requests, answers
            for line in self._lines:
                line.mute_client, line.mute_server = requests, answers

    def cut(self) -> None:
        """Nobody is there: connections are reset and new ones closed at once, until `heal`."""
        self._refuse = True
        self.reset_all()

    def heal(self) -> None:
        """Be a good proxy again. Connections that lost bytes cannot go on and are reset."""
        with self._lock:
            self._mute_client = self._mute_server = self._refuse = False
            self.delay_s = 0.0
            broken = [line for line in self._lines if line.mute_client or line.mute_server]
        for line in broken:
            self._drop(line)

    def reset_all(self) -> None:
        """Reset the connections of now."""
        with self._lock:
            lines = list(self._lines)
        for line in lines:
            self._drop(line)

    def _spawn(self, work, *arguments) -> None:
        thread = threading.Thread(target=work, args=arguments, name="proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            try:
                server = None if self._refuse else socket.create_connection(self._target, timeout=2)
            except OSError:
                server = None
            if server is None:
                self.reset += 1
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                line = _Line(client, server, self._mute_client, self._mute_server)
                self._lines.add(line)
            self._spawn(self._pump, line, True)
            self._spawn(self._pump, line, False)

    def _pump(self, line: _Line, from_client: bool) -> None:
        source = line.client if from_client else line.server
        late: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
        self._spawn(self._deliver, line, from_client, late)
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                late.put((SYSTEM_CLOCK.monotonic_s() + self.delay_s, data))
        late.put((0.0, b""))

    def _deliver(self, line: _Line, from_client: bool, late: queue.SimpleQueue) -> None:
        sink = line.server if from_client else line.client
        while (item := late.get())[1]:
            due_s, data = item
            if (left_s := due_s - SYSTEM_CLOCK.monotonic_s()) > 0:
                self.delayed += 1
                self._closed.wait(left_s)
            if line.mute_client if from_client else line.mute_server:
                self.lost_bytes += len(data)
                continue
            try:
                sink.sendall(data)
            except OSError:
                break
        if not (line.mute_client or line.mute_server):
            self._drop(line)

    def _drop(self, line: _Line) -> None:
        with self._lock:
            if line not in self._lines:
                return
            self._lines.remove(line)
        self.reset += 1
        for end in (line.client, line.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
