"""Signals at every moment, and ends: documented exit codes, nothing left running, nobody else hurt."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from pathlib import Path

import pytest

from elastic.events import AgentStarted, CheckpointSaved, StepCommitted, WorkerStarted, WorldFormed
from elastic.local.cluster import Cluster, ClusterSpec
from elastic.local.etcd import EtcdServer
from elastic.local.node import ROOT, descendants
from tests.harness.faults import came_to
from tests.harness.survival import SETTINGS, cluster, exact_account

pytestmark = pytest.mark.integration

LEAVING = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1]
MOMENTS = {"alone": AgentStarted, "agreed": WorldFormed, "starting": WorkerStarted, "saving": CheckpointSaved}


def all_gone(pids: list[int], *, limit_s: float) -> bool:
    until_s = time.monotonic() + limit_s
    return all(came_to(pid, "", "Z", limit_s=max(0.0, until_s - time.monotonic())) for pid in pids)


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_one_leaves_and_the_other_loses_nothing(tmp_path: Path, etcd: EtcdServer, number: signal.Signals) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=400) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(40, world_size=2)
        run.nodes["b"].signal(number)
        assert run.wait_exit("b", limit_s=30) == 75
        assert run.wait_exit("a", limit_s=90) == 0
        account = exact_account(run)
        assert (account.steps, account.recomputed_steps) == (400, 0)


def test_before_anybody_else_is_there(tmp_path: Path, etcd: EtcdServer) -> None:
    spec = ClusterSpec(directory=tmp_path, etcd_endpoint=etcd.endpoint, environ=SETTINGS, nnodes="2:4")
    with Cluster(spec) as run:
        run.start("a")
        run.wait(lambda r: isinstance(r.event, AgentStarted), what="its start", limit_s=30)
        run.nodes["a"].signal(signal.SIGTERM)
        assert run.wait_exit("a", limit_s=10) == 75


@pytest.mark.exhaustive
def test_a_worker_that_ignores_everything_is_gone_after_the_stop_time(tmp_path: Path, etcd: EtcdServer) -> None:
    job = {"ELASTIC__JOB__TARGET": "tests.harness.small_job:stuck"}
    with cluster(tmp_path, etcd.endpoint, steps=400, options=("--shutdown-timeout=2",), **job) as run:
        run.start("a")
        run.wait_step(3)  # its last: in the fourth the worker is stuck
        workers = descendants(run.nodes["a"].pid)
        assert workers
        began_s = time.monotonic()
        run.nodes["a"].signal(signal.SIGTERM)
        assert run.wait_exit("a", limit_s=20) == 75
        assert 1.5 < time.monotonic() - began_s < 10
        assert all_gone(workers, limit_s=1)


@pytest.mark.exhaustive
def test_a_worker_that_ignores_everything_is_gone_on_a_restart_too(tmp_path: Path, etcd: EtcdServer) -> None:
    job = {"ELASTIC__JOB__TARGET": "tests.harness.small_job:stuck"}
    with cluster(tmp_path, etcd.endpoint, steps=400, nnodes="2:4", **job) as run:
        for name in ("a", "b"):
            run.start(name)
        step = run.wait_step(6, world_size=2)  # its last: in the seventh both workers are stuck
        (stuck,), (victim,) = run.nodes["a"].workers(), run.nodes["b"].workers()
        at = run.now()
        os.kill(victim, signal.SIGKILL)
        assert all_gone([stuck], limit_s=10)
        started = run.wait(lambda r: isinstance(r.event, WorkerStarted), what="new workers", limit_s=10, since=at)
        assert started.generation > step.generation


def test_a_second_signal_ends_it_at_once(tmp_path: Path, etcd: EtcdServer) -> None:
    job = {"ELASTIC__JOB__TARGET": "tests.harness.small_job:stuck"}
    with cluster(tmp_path, etcd.endpoint, steps=400, options=("--shutdown-timeout=60",), **job) as run:
        node = run.start("a")
        run.wait_step(3)  # its last: in the fourth the worker is stuck
        workers = descendants(node.pid)
        node.signal(signal.SIGTERM)
        until_s = time.monotonic() + 10
        while "finishing the step and leaving" not in node.log.read_text():
            assert time.monotonic() < until_s
            os.sched_yield()
        node.signal(signal.SIGINT)
        assert run.wait_exit("a", limit_s=10) == 75
        assert all_gone(workers, limit_s=1)


@pytest.mark.exhaustive
def test_an_agent_killed_alone_leaves_no_orphan(tmp_path: Path, etcd: EtcdServer) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=600) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(40, world_size=2)
        workers = descendants(run.nodes["b"].pid)
        assert workers
        before = run.now()
        run.nodes["b"].signal(signal.SIGKILL)
        assert all_gone(workers, limit_s=2)
        run.wait_step(1, world_size=1, since=before)
        assert run.wait_exit("a", limit_s=90) == 0
        assert exact_account(run).steps == 600


def late(tmp_path: Path, etcd: EtcdServer, late_s: float) -> None:
    environ = {**SETTINGS, "ELASTIC__TRAINING__STEPS": "30", "LATE_S": str(late_s), "PYTHONPATH": str(ROOT)}
    spec = ClusterSpec(
        directory=tmp_path,
        etcd_endpoint=etcd.endpoint,
        environ=environ,
        script="tests/harness/late_finish.py",
        nnodes="2:4",
    )
    with Cluster(dataclasses.replace(spec)) as run:
        for name in ("a", "b"):
            run.start(name)
        assert [run.wait_exit(name, limit_s=60 + late_s) for name in ("a", "b")] == [0, 0]
        generations = {r.generation for r in run.follower.records if isinstance(r.event, StepCommitted)}
        assert len(generations) <= 1, "nobody was started again"


@pytest.mark.exhaustive
def test_ranks_that_finish_apart_do_not_fail_each_other(tmp_path: Path, etcd: EtcdServer) -> None:
    late(tmp_path, etcd, 4)


@pytest.mark.exhaustive
def test_ranks_that_finish_thirty_seconds_apart(tmp_path: Path, etcd: EtcdServer) -> None:
    late(tmp_path, etcd, 30)


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", LEAVING)
@pytest.mark.parametrize("moment", MOMENTS)
def test_at_every_moment(tmp_path: Path, etcd: EtcdServer, number: signal.Signals, moment: str) -> None:
    nodes = "2:4" if moment == "alone" else "1:4"
    environ = {**SETTINGS, "ELASTIC__TRAINING__STEPS": "100000"}
    spec = ClusterSpec(directory=tmp_path, etcd_endpoint=etcd.endpoint, environ=environ, nnodes=nodes)
    with Cluster(spec) as run:
        node = run.start("a")
        run.wait(lambda r: isinstance(r.event, MOMENTS[moment]), what=moment, limit_s=60)
        workers = descendants(node.pid)
        node.signal(number)
        assert run.wait_exit("a", limit_s=45) == 75
        assert all_gone(workers, limit_s=2)
