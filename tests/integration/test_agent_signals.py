"""Signals to an agent, when something is half done: it leaves with the documented code and nothing behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from elastic.events import GroupReady, JobEnded, Outcome, WorkerStarted, WorldFormed, read_records
from elastic.local.node import ROOT
from tests.harness.survival import cluster

pytestmark = pytest.mark.integration


def ends(run):
    return [r.event for r in read_records(run.save_path / "events") if isinstance(r.event, JobEnded)]


def test_while_waiting_for_others(tmp_path, etcd):
    with cluster(tmp_path, etcd.endpoint, steps=50) as run:
        node = run.start("a", ELASTIC__RENDEZVOUS__FIRST_WAIT_S="300")
        started = run.wait(lambda r: r.event.kind == "agent_started", what="the agent", limit_s=60)
        assert started.node == "a"
        node.signal(signal.SIGTERM)
        assert run.wait_exit("a", limit_s=20) == 75
        (end,) = ends(run)
        assert end.outcome is Outcome.PREEMPTED
        assert node.log.read_text().rstrip().splitlines()[-1] == "left on SIGTERM; please requeue"


@pytest.mark.parametrize(
    "moments", [pytest.param((WorldFormed,), marks=pytest.mark.exhaustive), (WorkerStarted, GroupReady)]
)
def test_while_workers_are_being_started(moments, tmp_path, etcd):
    """The worker takes part in a step, saves and ends; a second signal ends it at once. Nothing is left behind."""
    with cluster(tmp_path, etcd.endpoint, steps=5000) as run:
        node = run.start("a", ELASTIC__RENDEZVOUS__FIRST_WAIT_S="0")
        sent = []

        def fire(record):
            if isinstance(record.event, moments):
                sent.append(type(record.event))
                node.signal(signal.SIGINT)

        run.follower._on_record = fire
        run.wait(lambda r: isinstance(r.event, JobEnded), what="the end", limit_s=90)
        assert tuple(sent) == moments
        assert run.wait_exit("a", limit_s=20) == 75
        (end,) = ends(run)
        assert end.reason == "left on SIGINT; please requeue"


def test_programs_are_what_can_be_started(tmp_path, etcd):
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    done = subprocess.run(
        [torchrun, "--nnodes=1:4", "--rdzv_backend=etcd", "--run-path", "elastic/worker.py"],
        cwd=ROOT,
        env={
            **os.environ,
            "ETCD_ENDPOINTS": etcd.endpoint,
            "ELASTIC__CHECKPOINT__SAVE_PATH": str(tmp_path),
            "ELASTIC__METRICS__PORT": "19600",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 64, done.stderr
    assert "--run-path" in done.stderr.splitlines()[-1]
