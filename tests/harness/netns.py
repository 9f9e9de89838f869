"""A small net of network namespaces: nodes around a router that drops what a test says. Linux, root only.

Each leaf has an address of its own behind the router, so that a cut is silent and may be one-way: the router's
policy rules swallow what comes from one leaf for another. The machine's own net is never touched.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

import pytest

from elastic.local.etcd import find_etcd

NEEDS = "needs root and iproute2 for network namespaces"


def why_no_netns() -> str:
    """Why namespaces cannot be made here; empty where they can."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return NEEDS
    name = f"ela-try-{uuid.uuid4().hex[:6]}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode != 0:
        return f"{NEEDS}, and this kernel refuses them"
    _ip("netns", "del", name)
    return ""


def require_netns() -> None:
    """Skip the test where namespaces cannot be made."""
    if reason := why_no_netns():
        pytest.skip(reason)


class Net:
    """Leaves by name, all IPv4 or all IPv6. `cut` and `heal` take effect at once, on connections that stand too."""

    def __init__(self, *leaves: str, version: int = 4) -> None:
        self._version = version
        self._id = uuid.uuid4().hex[:5]
        self._router = f"ela-{self._id}-r"
        self._number = {name: index for index, name in enumerate(leaves, start=1)}
        self._rules: set[tuple[str, str]] = set()

    def address(self, leaf: str) -> str:
        return self._address(self._number[leaf], 2)

    def prefix(self, leaf: str) -> tuple[str, ...]:
        """What to put before a command so that it runs there. It keeps its pid."""
        return ("ip", "netns", "exec", self._name(leaf))

    def cut_one_way(self, sources: Iterable[str], targets: Iterable[str]) -> None:
        """Nothing from a source reaches a target any more; the other way stays."""
        for pair in ((source, target) for source in sources for target in targets):
            self._rule("add", *pair)
            self._rules.add(pair)

    def cut(self, here: Sequence[str], there: Sequence[str]) -> None:
        """Nothing passes between the two sides."""
        self.cut_one_way(here, there)
        self.cut_one_way(there, here)

    def isolate(self, leaf: str) -> None:
        """Nothing passes between this leaf and any other."""
        self.cut([leaf], [name for name in self._number if name != leaf])

    def heal(self) -> None:
        for pair in self._rules:
            self._rule("del", *pair)
        self._rules.clear()

    def dropped(self, source: str, target: str) -> bool:
        """Whether the router swallows what goes this way: how a test shows that a cut is one."""
        command = ["ip", "netns", "exec", self._router, "ip", "route", "get", self.address(target)]
        command += ["from", self.address(source), "iif", f"v{self._number[source]}"]
        return subprocess.run(command, capture_output=True, check=False).returncode != 0

    def __enter__(self) -> Self:
        _ip("netns", "add", self._router)
        try:
            _ip("-n", self._router, "link", "set", "lo", "up")
            switch = "ipv4/ip_forward" if self._version == 4 else "ipv6/conf/all/forwarding"
            forward = ["ip", "netns", "exec", self._router, "sh", "-c", f"echo 1 > /proc/sys/net/{switch}"]
            subprocess.run(forward, check=True, capture_output=True)
            for leaf in self._number:
                self._add(leaf)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in (*(self._name(leaf) for leaf in self._number), self._router):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def _name(self, leaf: str) -> str:
        return f"ela-{self._id}-{leaf}"

    def _address(self, number: int, host: int) -> str:
        return f"10.77.{number}.{host}" if self._version == 4 else f"fd77:{number}::{host}"

    def _add(self, leaf: str) -> None:
        number, name = self._number[leaf], self._name(leaf)
        _ip("netns", "add", name)
        _ip(
            *("-n", self._router, "link", "add", f"v{number}", "type", "veth"),
            *("peer", "name", "eth0", "netns", name),
        )
        for place, device, address in ((self._router, f"v{number}", 1), (name, "eth0", 2)):
            width, more = ("24", ()) if self._version == 4 else ("64", ("nodad",))  # usable at once
            _ip("-n", place, "addr", "add", f"{self._address(number, address)}/{width}", "dev", device, *more)
            _ip("-n", place, "link", "set", device, "up")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "route", "add", "default", "via", self._address(number, 1))

    def _rule(self, verb: str, source: str, target: str) -> None:
        way = ("from", self.address(source), "to", self.address(target))
        _ip(f"-{self._version}", "-n", self._router, "rule", verb, *way, "pref", "10", "blackhole")


@contextlib.contextmanager
def etcd_in(net: Net, leaf: str, directory: Path) -> Iterator[str]:
    """An etcd on a leaf; its endpoint."""
    host = net.address(leaf) if ":" not in net.address(leaf) else f"[{net.address(leaf)}]"
    client, peer = f"http://{host}:2379", f"http://{host}:2380"
    directory.mkdir(mode=0o700)
    process = subprocess.Popen(
        [
            *(*net.prefix(leaf), find_etcd(), "--name", "n", "--data-dir", str(directory)),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"n={peer}"),
        ],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stderr is not None
    ready = threading.Event()

    def read(lines: Iterable[str]) -> None:
        for line in lines:
            if "ready to serve client requests" in line:
                ready.set()

    reader = threading.Thread(target=read, args=(process.stderr,))
    reader.start()
    try:
        assert ready.wait(20), "etcd did not start in its namespace"
        yield client.removeprefix("http://")
    finally:
        process.terminate()
        process.wait(20)
        reader.join(5)
        process.stderr.close()


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
