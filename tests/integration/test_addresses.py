"""Hosts as they are: names that nobody can resolve, networks that know no IPv4. Everything meets by address."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from elastic.events import Recovered
from elastic.local.cluster import Cluster
from elastic.local.etcd import EtcdServer
from tests.harness.netns import Net, etcd_in, require_netns
from tests.harness.survival import cluster, exact_account

pytestmark = pytest.mark.integration

RESOLVE = "import socket; socket.getaddrinfo(socket.gethostname(), None)"


def nameless(name: str) -> tuple[str, ...]:
    """What to put before a command so that it runs on a host of a name that no resolver knows. It keeps its pid."""
    return ("unshare", "--uts", "sh", "-c", f'hostname {name}.does-not.invalid && exec "$@"', "sh")


def require_nameless() -> None:
    tried = [*nameless("try"), "true"]
    if shutil.which("unshare") is None or subprocess.run(tried, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs root and util-linux for hosts of another name")


def assert_nameless(prefix: Sequence[str]) -> None:
    done = subprocess.run([*prefix, sys.executable, "-c", RESOLVE], capture_output=True, text=True, check=False)
    assert "gaierror" in done.stderr, "the name can be resolved here"


@pytest.fixture
def etcd_v6(tmp_path: Path) -> Iterator[EtcdServer]:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError:
        pytest.skip("this machine has no IPv6, not even on loopback")
    with EtcdServer(tmp_path / "etcd", host="::1") as server:
        yield server


def survives_a_loss(run: Cluster, prefixes: dict[str, tuple[str, ...]]) -> None:
    """Both train as one, one is killed, the other goes on to the end."""
    for name, prefix in prefixes.items():
        run.start(name, prefix=prefix)
    run.wait_step(40, world_size=2)
    before = run.now()
    run.nodes["b"].kill()
    run.wait(lambda r: isinstance(r.event, Recovered), what="recovery", limit_s=60, since=before)
    assert run.wait_exit("a", limit_s=90) == 0
    assert exact_account(run).steps == 400


@pytest.mark.exhaustive
def test_over_ipv6_loopback_on_hosts_without_a_name(tmp_path: Path, etcd_v6: EtcdServer) -> None:
    require_nameless()
    assert_nameless(nameless("a"))
    with cluster(tmp_path, etcd_v6.endpoint, steps=400) as run:
        survives_a_loss(run, {name: nameless(name) for name in ("a", "b")})


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", [4, 6])
def test_between_hosts_without_a_name(tmp_path: Path, version: int) -> None:
    require_netns()
    require_nameless()
    with Net("a", "b", "etcd", version=version) as net:
        prefixes = {name: (*net.prefix(name), *nameless(name)) for name in ("a", "b")}
        assert_nameless(prefixes["a"])
        with etcd_in(net, "etcd", tmp_path / "etcd") as endpoint, cluster(tmp_path, endpoint, steps=400) as run:
            survives_a_loss(run, prefixes)


@pytest.mark.exhaustive
def test_an_address_given_by_hand(tmp_path: Path, etcd: EtcdServer) -> None:
    """The whole of 127/8 is this machine's own, so that the others find the store where it was said to be."""
    with cluster(tmp_path, etcd.endpoint, steps=100, options=("--local-addr=127.0.0.5",)) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(1, world_size=2)
        (worker,) = run.nodes["b"].workers()
        assert "MASTER_ADDR=127.0.0.5" in Path(f"/proc/{worker}/environ").read_text().split("\0")
        assert [run.wait_exit(name, limit_s=90) for name in ("a", "b")] == [0, 0]
        assert exact_account(run).steps == 100
