"""The save path's file system stalls while a run trains: a real one, frozen. No step is lost, and none waits for it
but for the first save that falls due meanwhile, ten seconds at most."""

from __future__ import annotations

import contextlib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic.events import AgentStarted, Notice, Record, StepCommitted, WorkerStarted
from elastic.local.cluster import Cluster
from elastic.local.etcd import EtcdServer
from tests.harness.disks import LoopDisk
from tests.harness.scrape import parsed
from tests.harness.survival import cluster, durable, exact_account, leave_all
from tests.harness.until import until

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

STEPS = 100_000
MORE_STEPS = 500
"""While it is frozen."""
OFTEN_STEPS = 100
LIMIT_S = 90.0


@contextlib.contextmanager
def training(directory: Path, etcd: EtcdServer, *, save_each_steps: int) -> Iterator[tuple[Cluster, LoopDisk]]:
    """Two nodes that train, and the disk that they save to. Whole at its end: no step twice, nobody lost."""
    with LoopDisk(directory) as disk:
        (disk.path / "run").mkdir()
        (directory / "checkpoint").symlink_to(disk.path / "run")
        saves = {"ELASTIC__CHECKPOINT__SAVE_INTERLEAVED_STEPS": str(save_each_steps)}
        with cluster(directory, etcd.endpoint, steps=STEPS, nnodes="2:4", **saves) as run:
            for name in ("a", "b"):
                run.start(name)
            run.wait_step(30, world_size=2)
            yield run, disk
            leave_all(run)
            run.now()
            assert exact_account(run).recomputed_steps == 0
            records = run.follower.records
            assert {r.generation for r in records if isinstance(r.event, StepCommitted)} == {1}
            assert sum(isinstance(r.event, WorkerStarted) for r in records) == 2


def train_on(run: Cluster, disk: LoopDisk) -> int:
    """Freeze the disk for MORE_STEPS; the number of records before."""
    with disk.frozen():
        told = run.now()
        at = max(r.event.iteration for r in run.follower.records if isinstance(r.event, StepCommitted))
        until(lambda: told_step(run) >= at + MORE_STEPS, what="progress without a disk", limit_s=LIMIT_S)
        assert run.now() == told, "it is frozen: nothing was written"
    run.wait_step(at + MORE_STEPS + 100, since=told)
    return told


def told_step(run: Cluster) -> float:
    """The step that an agent tells Prometheus of, which needs no disk."""
    started = next(r.event for r in run.follower.records if isinstance(r.event, AgentStarted))
    with urllib.request.urlopen(f"http://{started.exporter}/metrics", timeout=30) as answer:
        return parsed(answer.read().decode())["elastic_step",]


def test_a_disk_that_stalls_stops_no_step(tmp_path: Path, etcd: EtcdServer) -> None:
    with training(tmp_path, etcd, save_each_steps=50_000) as (run, disk):
        train_on(run, disk)
    assert any(durable(r) for r in run.follower.records)
    words = "".join((tmp_path / f"{name}.log").read_text() for name in ("a", "b"))
    assert "the disk has not taken an event within" in words
    assert "the disk takes events again" in words


def test_nor_do_saves_that_fall_due_meanwhile(tmp_path: Path, etcd: EtcdServer) -> None:
    with training(tmp_path, etcd, save_each_steps=OFTEN_STEPS) as (run, disk):
        first = run.wait(durable, what="a save", limit_s=LIMIT_S)
        run.wait_step(first.event.iteration + 20, world_size=2)  # by then its tracker has followed
        told = train_on(run, disk)

        def stalled(record: Record) -> bool:
            return durable(record) and record.event.skipped > 0

        after = run.wait(stalled, what="the save that stalled", limit_s=LIMIT_S, since=told).event
        assert after.iteration == first.event.iteration + OFTEN_STEPS
        assert after.skipped >= MORE_STEPS // OFTEN_STEPS - 1
        later = run.wait(
            lambda r: durable(r) and r.event.iteration > after.iteration, what="the next", limit_s=LIMIT_S, since=told
        )
        assert later.event.skipped == 0
    said = [r.event.text for r in run.follower.records if isinstance(r.event, Notice)]
    assert sum("does a disk stall?" in text for text in said) == 1, said
