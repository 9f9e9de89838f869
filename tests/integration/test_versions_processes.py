"""Old and new agents in one job, as processes: a release of the same protocol is rolled in node by node and back, one
of another protocol is refused, whichever was there first."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from elastic.errors import ExitCode
from elastic.events import AgentStarted, StepCommitted
from elastic.local.cluster import Cluster, ClusterSpec
from elastic.local.etcd import EtcdServer
from elastic.local.node import ROOT
from tests.harness.survival import SETTINGS, exact_account

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]


def installed(where: Path, *, version: str = "", protocol: str = "") -> Path:
    """Another installation of the package, which says so of itself."""
    shutil.copytree(ROOT / "elastic", where / "elastic", ignore=shutil.ignore_patterns("__pycache__"))
    for file, pattern, text in (
        (where / "elastic" / "__init__.py", r'__version__ = "[^"]+"', f'__version__ = "{version}"' if version else ""),
        (
            where / "elastic" / "rendezvous" / "speech.py",
            r"^PROTOCOL = \d+$",
            f"PROTOCOL = {protocol}" if protocol else "",
        ),
    ):
        if text:
            changed, count = re.subn(pattern, text, file.read_text(), flags=re.MULTILINE)
            assert count == 1, f"{file.name} does not say it as this test thinks"
            file.write_text(changed)
    return where


def job(directory: Path, etcd: EtcdServer, home: Path) -> Cluster:
    """Nodes of an installation, in the run of this directory."""
    path = os.pathsep.join([str(home), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = {**SETTINGS, "ELASTIC__TRAINING__STEPS": "100000", "PYTHONPATH": path}
    script = str(home / "elastic" / "worker.py")
    return Cluster(ClusterSpec(directory=directory, etcd_endpoint=etcd.endpoint, environ=environ, script=script))


def leave(run: Cluster, *names: str) -> None:
    for name in names:
        run.nodes[name].process.terminate()
    assert {run.wait_exit(name) for name in names} == {ExitCode.PREEMPTED}


def test_a_release_is_rolled_in_node_by_node_and_back(tmp_path: Path, etcd: EtcdServer) -> None:
    home = installed(tmp_path / "new", version="99.0.0")
    with job(tmp_path, etcd, ROOT) as old, job(tmp_path, etcd, home) as new:
        for name in ("a", "b"):
            old.start(name)
        old.wait_step(20, world_size=2)
        for name in ("a", "b"):  # forward
            leave(old, name)
            since = new.now()
            new.start(name)
            new.wait_step(1, world_size=2, since=since)
        leave(new, "b")  # and one back
        since = old.now()
        old.start("b")
        old.wait_step(1, world_size=2, since=since)
        leave(new, "a")
        leave(old, "b")
        old.now()
        versions = {r.event.version for r in old.follower.records if isinstance(r.event, AgentStarted)}
        assert "99.0.0" in versions
        assert len(versions) == 2
        assert exact_account(old).recomputed_steps == 0


@pytest.mark.parametrize("first", ["old", "new"])
def test_another_protocol_is_refused_and_whoever_was_first_goes_on(
    first: str, tmp_path: Path, etcd: EtcdServer
) -> None:
    home = installed(tmp_path / "new", protocol="99")
    with job(tmp_path, etcd, ROOT) as old, job(tmp_path, etcd, home) as new:
        here, other = (old, new) if first == "old" else (new, old)
        here.start("a")
        here.wait_step(10, world_size=1)
        other.start("b")
        assert other.wait_exit("b") == ExitCode.USAGE
        assert "install the same version on all nodes" in other.nodes["b"].log.read_text()
        at = here.now()
        here.wait_step(1, world_size=1, since=at)
        assert {r.generation for r in here.follower.records if isinstance(r.event, StepCommitted)} == {1}
        leave(here, "a")
        # The other way of the runbook: all have ended in order, all are started anew with the other version.
        since = other.now()
        other.start("b")
        other.wait_step(1, world_size=1, since=since)
        leave(other, "b")
        assert exact_account(other).recomputed_steps == 0
