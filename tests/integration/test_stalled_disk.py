"""The save path's file system stalls while a run trains: a real one, frozen. Steps between two saves wait for nothing.

A save that falls due meanwhile makes its directory first, which training does wait for.
"""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from elastic.events import AgentStarted, StepCommitted, WorkerStarted
from elastic.local.cluster import Cluster
from elastic.local.etcd import EtcdServer
from tests.harness.disks import LoopDisk
from tests.harness.scrape import parsed
from tests.harness.survival import cluster, durable, exact_account, leave_all
from tests.harness.until import until

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

STEPS = 100_000
MORE_STEPS = 500
"""While it is frozen; no save is due."""


def reached(run: Cluster) -> int:
    return max(r.event.iteration for r in run.follower.records if isinstance(r.event, StepCommitted))


def told_step(run: Cluster) -> float:
    """The step that an agent tells Prometheus of, which needs no disk."""
    started = next(r.event for r in run.follower.records if isinstance(r.event, AgentStarted))
    with urllib.request.urlopen(f"http://{started.exporter}/metrics", timeout=30) as answer:
        return parsed(answer.read().decode())["elastic_step",]


def test_a_disk_that_stalls_stops_no_step(tmp_path: Path, etcd: EtcdServer) -> None:
    with LoopDisk(tmp_path) as disk:
        (disk.path / "run").mkdir()
        (tmp_path / "checkpoint").symlink_to(disk.path / "run")
        seldom = {"ELASTIC__CHECKPOINT__SAVE_INTERLEAVED_STEPS": "50000"}
        with cluster(tmp_path, etcd.endpoint, steps=STEPS, nnodes="2:4", **seldom) as run:
            for name in ("a", "b"):
                run.start(name)
            run.wait_step(30, world_size=2)
            with disk.frozen():
                told = run.now()
                at = reached(run)
                until(lambda: told_step(run) >= at + MORE_STEPS, what="progress without a disk", limit_s=90)
                assert run.now() == told, "it is frozen: nothing was written"
            run.wait_step(at + MORE_STEPS + 100, since=told)
            leave_all(run)
            run.now()
            assert any(durable(r) for r in run.follower.records)
            assert exact_account(run).recomputed_steps == 0
            records = run.follower.records
            assert {r.generation for r in records if isinstance(r.event, StepCommitted)} == {1}
            assert sum(isinstance(r.event, WorkerStarted) for r in records) == 2
        words = "".join((tmp_path / f"{name}.log").read_text() for name in ("a", "b"))
        assert "the disk has not taken an event within" in words
        assert "the disk takes events again" in words
