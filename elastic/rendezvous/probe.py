"""Probe: ask an agent for its name over TCP. A dead machine does not answer, nor does a frozen process.

The answer comes from a thread of the agent, so a port that the kernel still accepts on proves nothing by itself.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from elastic.clock import SYSTEM_CLOCK
from elastic.errors import UsageError
from elastic.rendezvous.model import ProbeResult

_LONGEST_NAME_BYTES = 256
_AT_ONCE = 32


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where an agent listens for probes."""

    address: str
    port: int


def listen_on(address: str, *, backlog: int = 128) -> socket.socket:
    """A listening socket on a free port of this address only, v4 or v6.

    Raises:
        UsageError: this machine cannot listen there.
    """
    try:
        family, kind, protocol, _name, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.bind(place)
            listener.listen(backlog)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise UsageError(
            f"cannot listen on {address} ({error.strerror or error}); give an address of this machine that the other "
            "nodes reach with --local-addr"
        ) from error
    return listener


class ProbeListener:
    """Answers every connection with the agent's name, from a thread of its own."""

    def __init__(self, agent: str, *, address: str) -> None:
        self._answer = agent.encode()
        self._listener = listen_on(address)
        self._stopping = False
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, name="elastic-probe", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Close the port; a probe is refused from now on."""
        self._stopping = True
        # A thread in accept() is not woken by close(), but it is by shutdown().
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                continue
            with connection, contextlib.suppress(OSError):
                connection.settimeout(1.0)
                connection.sendall(self._answer)


def probe(target: Target, *, agent: str, timeout_s: float = 0.3) -> ProbeResult:
    """Whether the agent answers there. Another's answer counts as a refusal: the port has changed hands."""
    deadline_s = SYSTEM_CLOCK.monotonic_s() + timeout_s
    try:
        with socket.create_connection((target.address, target.port), timeout=timeout_s) as connection:
            answer = b""
            while len(answer) < _LONGEST_NAME_BYTES:
                connection.settimeout(max(0.001, deadline_s - SYSTEM_CLOCK.monotonic_s()))
                if not (part := connection.recv(_LONGEST_NAME_BYTES)):
                    break
                answer += part
    except (ConnectionRefusedError, ConnectionResetError):
        return ProbeResult.REFUSED
    except OSError:
        return ProbeResult.SILENT
    return ProbeResult.ALIVE if answer == agent.encode() else ProbeResult.REFUSED


def probe_all(targets: Mapping[str, Target], *, timeout_s: float = 0.3) -> dict[str, ProbeResult]:
    """Probe several agents at once; takes about `timeout_s` for each 32 that stay silent."""
    if not targets:
        return {}
    with ThreadPoolExecutor(max_workers=min(len(targets), _AT_ONCE), thread_name_prefix="elastic-probing") as pool:
        results = pool.map(lambda item: probe(item[1], agent=item[0], timeout_s=timeout_s), targets.items())
        return dict(zip(targets, results, strict=True))
