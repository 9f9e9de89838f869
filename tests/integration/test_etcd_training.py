"""A real training run while etcd is in trouble: no restart, no lost step, and no secret where it does not belong."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from elastic.checkpoint.layout import TRACKER
from elastic.clock import SYSTEM_CLOCK
from elastic.events import CheckpointFailed, StepCommitted, WorkerStarted, read_records
from elastic.local.cluster import Cluster
from elastic.local.etcd import EtcdCluster, EtcdServer
from elastic.local.node import descendants
from tests.harness.certificates import Authority
from tests.harness.etcd_admin import User, enable_users, keys, leader, leases, mark
from tests.harness.survival import cluster, durable, exact_account
from tests.harness.until import of, until

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

TTL = {"ELASTIC__RENDEZVOUS__TTL_S": "3"}
OUTAGE_S = 8.0
"""Longer than twice the lease."""
STEPS = 1_000_000
"""More than any test waits for."""


@pytest.fixture
def three(tmp_path):
    with EtcdCluster(tmp_path / "etcd") as members:
        yield members


def both(tmp_path: Path, endpoint: str) -> Cluster:
    """A cluster whose first world has both nodes."""
    return cluster(tmp_path, endpoint, steps=STEPS, nnodes="2:4", **TTL)


def steps_of(run: Cluster, since: int) -> list[int]:
    return [r.event.iteration for r in run.follower.records[since:] if isinstance(r.event, StepCommitted)]


def assert_no_restart(run: Cluster) -> None:
    """Ends the run. One generation until then, each worker started once, every sample used once, all of it saved."""
    for node in run.nodes.values():
        node.signal(signal.SIGTERM)
    assert [run.wait_exit(name) for name in run.nodes] == [75] * len(run.nodes)
    records = read_records(run.save_path / "events")
    assert sum(isinstance(r.event, WorkerStarted) for r in records) == len(run.nodes), "no worker was started again"
    committed = [r for r in records if isinstance(r.event, StepCommitted)]
    assert {r.generation for r in committed} == {1}
    steps = exact_account(run).steps
    assert (run.save_path / TRACKER).read_text().strip() == str(steps)
    assert steps == max(r.event.iteration for r in committed)  # type: ignore[attr-defined]


@pytest.mark.parametrize("outage_s", [OUTAGE_S, pytest.param(60.0, marks=pytest.mark.exhaustive)])
def test_all_members_are_down_while_training_goes_on(tmp_path: Path, three: EtcdCluster, outage_s: float) -> None:
    with both(tmp_path, three.endpoint) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(30, world_size=2)
        three.kill()
        begun = run.now()
        until_s = SYSTEM_CLOCK.monotonic_s() + outage_s
        run.wait_step(max(steps_of(run, 0)) + 60, since=begun)  # two saves are due meanwhile
        SYSTEM_CLOCK.sleep(max(0.0, until_s - SYSTEM_CLOCK.monotonic_s()))
        ended = run.now()
        three.start()
        assert len(set(steps_of(run, begun)[: ended - begun])) >= 60, "steps were committed during the outage"
        failed = [r.event.reason for r in run.follower.records[begun:ended] if isinstance(r.event, CheckpointFailed)]
        assert failed, "a save fell into the outage"
        assert any("unconfirmed" in reason for reason in failed), failed
        run.wait(durable, what="a save afterwards", limit_s=60, since=ended)
        assert_no_restart(run)


def test_etcd_is_frozen_for_longer_than_every_lease(tmp_path: Path) -> None:
    """When it thaws all leases are gone at once: nobody is lost, and nobody starts anew."""
    with EtcdServer(tmp_path / "etcd") as server, both(tmp_path, server.endpoint) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(30, world_size=2)
        before = leases(server.endpoint)
        server.pause()
        begun = run.now()
        SYSTEM_CLOCK.sleep(OUTAGE_S)
        reached = run.wait_step(max(steps_of(run, 0)) + 1, since=begun)
        server.resume()
        run.wait(durable, what="a save afterwards", limit_s=60, since=run.now())
        until_s = SYSTEM_CLOCK.monotonic_s() + 20
        while set(after := leases(server.endpoint)) != {"a", "b"}:
            assert SYSTEM_CLOCK.monotonic_s() < until_s, f"not everybody has written its key again: {after}"
            SYSTEM_CLOCK.sleep(0.1)
        assert all(after[node] != before[node] for node in after), "every lease had ended"
        assert reached.generation == 1
        assert_no_restart(run)


def test_the_leader_of_the_cluster_is_killed(tmp_path: Path, three: EtcdCluster) -> None:
    with both(tmp_path, three.endpoint) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(30, world_size=2)
        leader(*three.members).kill()
        at = run.now()
        saved = run.wait(durable, what="a save", limit_s=30, since=at)
        assert saved.generation == 1
        assert_no_restart(run)


def test_the_cluster_loses_its_data(tmp_path: Path) -> None:
    with EtcdServer(tmp_path / "etcd") as server, both(tmp_path, server.endpoint) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(30, world_size=2)
        marked = mark(server.endpoint)
        server.kill()
        server.wipe()
        server.start()
        assert marked not in keys(server.endpoint), "the data is gone"
        at = run.now()
        saved = run.wait(durable, what="a save", limit_s=60, since=at)
        assert saved.generation == 1
        assert_no_restart(run)


def told_to_everyone(run: Cluster) -> str:
    """Command lines and environments of a node's processes."""
    found = ""
    for node in run.nodes.values():
        for pid in (node.pid, *descendants(node.pid)):
            for part in ("cmdline", "environ"):
                with contextlib.suppress(OSError):  # it has ended
                    found += Path(f"/proc/{pid}/{part}").read_bytes().decode(errors="replace")
    return found


def with_the_keeper(run: Cluster) -> str:
    """The same once the lease keeper runs; it starts with the first renewal."""
    until(
        lambda: "elastic.rendezvous.lease_keeper" in told_to_everyone(run),
        what="the keeper's start",
        limit_s=20,
        news=of(run.follower),
        look_s=0.2,
    )
    return told_to_everyone(run)


def test_no_secret_gets_out(tmp_path: Path) -> None:
    secret = "s3cret-of-the-job"
    authority = Authority(tmp_path / "authority")
    (tmp_path / "password").write_text(secret)
    with EtcdServer(tmp_path / "etcd", tls=authority.server()) as server:
        trust = {"secure": True, "ca_file": str(authority.ca_file)}
        job = User(name="job", password=secret, prefix="/elastic/jobs/job/")
        enable_users(server.endpoint, root_password="another", users=(job,), **trust)
        conf = f"--rdzv-conf=protocol=https,cacert={authority.ca_file},user=job,password_file={tmp_path / 'password'}"
        with cluster(tmp_path, server.endpoint, steps=STEPS, options=(conf, "--rdzv-id=job"), **TTL) as run:
            run.start("a")
            run.wait_step(30)
            public = with_the_keeper(run)
            run.wait(durable, what="a save", limit_s=60)
            run.nodes["a"].signal(signal.SIGTERM)
            assert run.wait_exit("a") == 75
            files = [path for path in tmp_path.rglob("*") if path.is_file() and "etcd" not in path.parts]
            files = [path for path in files if path != tmp_path / "password"]
            assert any(path.suffix == ".safetensors" for path in files)
            assert any(path.suffix == ".jsonl" for path in files)
            assert secret not in public
            assert [path for path in files if secret.encode() in path.read_bytes()] == []
    assert secret not in str(os.environ)
