"""Planned leaves: whoever asks for one, the step is finished and made durable, and the others lose nothing."""

from __future__ import annotations

import getpass
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from elastic.cli import main
from elastic.events import LeaveAsked, Record, StepCommitted, WorkerLost, read_records
from elastic.local.cluster import Cluster
from elastic.local.etcd import EtcdServer
from elastic.local.node import Node, descendants
from tests.harness.leaving_job import SLOW_SAVE_S
from tests.harness.metadata import Metadata
from tests.harness.survival import cluster, durable, exact_account

pytestmark = pytest.mark.integration

STEPS = 200


def records(run: Cluster) -> list[Record]:
    return read_records(run.save_path / "events")


def leaves(run: Cluster, asked: LeaveAsked) -> None:
    """Node b goes with the documented code, a goes on to the end, and no step was done twice."""
    assert run.wait_exit("b", limit_s=30) == 75
    assert run.wait_exit("a", limit_s=90) == 0
    told = [(record.node, record.event) for record in records(run) if isinstance(record.event, LeaveAsked)]
    assert told == [("b", asked)]
    account = exact_account(run)
    assert (account.steps, account.recomputed_steps) == (STEPS, 0)


def test_a_drained_node_leaves(tmp_path: Path, etcd: EtcdServer, capsys: pytest.CaptureFixture[str]) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=STEPS) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(20, world_size=2)
        command = ["drain", "b", f"--rdzv-endpoint={etcd.endpoint}", f"--save-path={run.save_path}"]
        assert main([*command, "--reason=new\x1b[2J disk"]) == 0
        assert "b was asked to leave" in capsys.readouterr().out
        asked = f"asked by {getpass.getuser()} at {socket.gethostname()}: new [2J disk"
        leaves(run, LeaveAsked(source="drain", reason=asked))
        assert main(command) == 64
        assert "no node 'b' takes part in this job" in capsys.readouterr().err


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("cloud", "reason"),
    [("aws", "AWS will terminate this machine at 2026-01-02T03:04:05Z"), ("gcp", "GCP preempts this machine")],
)
def test_a_machine_that_is_to_go_leaves_and_its_last_warning_does_not_hurry_it(
    tmp_path: Path, etcd: EtcdServer, cloud: str, reason: str
) -> None:
    with Metadata() as metadata, cluster(tmp_path, etcd.endpoint, steps=STEPS) as run:
        run.start("a")
        asks = {"ELASTIC__NODE__NOTICES": cloud, "ELASTIC__NODE__NOTICES_ADDRESS": metadata.address}
        node = run.start("b", ELASTIC__NODE__NOTICES_PAUSE_S="0.1", **asks)
        run.wait_step(20, world_size=2)
        assert metadata.noticed == 0
        metadata.notice()
        run.wait(lambda record: isinstance(record.event, LeaveAsked), what="the notice", limit_s=20)
        node.signal(signal.SIGTERM)
        leaves(run, LeaveAsked(source=cloud, reason=reason))
        assert metadata.noticed == 1


def everybody(node: Node, number: signal.Signals) -> int:
    """Signal the agent and all below it at once, as batch systems do; how many they were."""
    pids = [node.pid, *descendants(node.pid)]
    for pid in pids:
        os.kill(pid, number)
    return len(pids)


def wait_for(place: Path, *, limit_s: float = 60.0) -> None:
    until_s = time.monotonic() + limit_s
    while not place.exists():
        assert time.monotonic() < until_s
        os.sched_yield()


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", ["evaluating", "slow_first_step"])
def test_a_signal_to_all_processes_of_a_node_in_a_long_moment(tmp_path: Path, etcd: EtcdServer, target: str) -> None:
    job = {"ELASTIC__JOB__TARGET": f"tests.harness.leaving_job:{target}", "MOMENT_FILE": str(tmp_path / "moment")}
    with cluster(tmp_path, etcd.endpoint, steps=STEPS, **job) as run:
        node = run.start("a")
        wait_for(tmp_path / "moment")
        assert everybody(node, signal.SIGTERM) >= 2
        assert run.wait_exit("a", limit_s=45) == 75
        goes_on(run)


@pytest.mark.exhaustive
def test_a_signal_to_all_processes_of_a_node_while_it_saves(tmp_path: Path, etcd: EtcdServer) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=STEPS) as run:
        node = run.start("a", ELASTIC_FAILPOINT="checkpoint.3=stop")
        stopped = run.wait_step(25)
        (worker,) = node.workers()
        assert stopped.event.iteration == 25
        until_s = time.monotonic() + 20
        while Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < until_s
            os.sched_yield()
        assert everybody(node, signal.SIGTERM) >= 2
        os.kill(worker, signal.SIGCONT)
        assert run.wait_exit("a", limit_s=45) == 75
        goes_on(run)


@pytest.mark.exhaustive
def test_a_save_may_take_longer_than_thirty_seconds(tmp_path: Path, etcd: EtcdServer) -> None:
    """On the node that leaves, and on the one that only gets another world."""
    moment = tmp_path / "moment"
    job = {"ELASTIC__JOB__TARGET": "tests.harness.leaving_job:slow_save", "MOMENT_FILE": str(moment)}
    timeout = ("--shutdown-timeout=120",)
    rare = {"ELASTIC__CHECKPOINT__SAVE_INTERLEAVED_STEPS": "100000"}
    with cluster(tmp_path, etcd.endpoint, steps=STEPS, options=timeout, **job, **rare) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(20, world_size=2)
        moment.touch()
        began_s = time.monotonic()
        run.nodes["b"].signal(signal.SIGTERM)
        assert run.wait_exit("b", limit_s=100) == 75
        assert time.monotonic() - began_s >= SLOW_SAVE_S, "the save was not slow"
        moment.unlink()
        assert run.wait_exit("a", limit_s=90) == 0
        assert any(durable(record) for record in records(run) if record.generation == 1)
        assert not [record for record in records(run) if isinstance(record.event, WorkerLost)]
        account = exact_account(run)
        assert (account.steps, account.recomputed_steps) == (STEPS, 0)


def goes_on(run: Cluster) -> None:
    """What was left behind is the last step done; the next start goes on from there, to the end."""
    steps = [record.event.iteration for record in records(run) if isinstance(record.event, StepCommitted)]
    saved = [record.event.iteration for record in records(run) if durable(record)]
    assert steps[-1] == saved[-1]
    run.start("again")
    assert run.wait_exit("again", limit_s=90) == 0
    account = exact_account(run)
    assert (account.steps, account.recomputed_steps) == (STEPS, 0)
