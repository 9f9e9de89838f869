"""Workers that stay: real torchrun agents, real kills; who survives keeps its process and its state."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from elastic.events import Recovered, Restored, StepCommitted, WorkerStarted, WorkerStayed
from elastic.local.etcd import EtcdServer
from tests.harness.survival import cluster, exact_account, leave_all

pytestmark = pytest.mark.integration


def test_only_the_dead_worker_is_started_again(tmp_path: Path, etcd: EtcdServer) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=100_000) as run:
        for name in ("a", "b", "c"):
            run.start(name)
        run.wait_step(30, world_size=3)
        pids = {name: node.workers() for name, node in run.nodes.items()}
        at = run.now()
        (victim,) = pids["b"]
        os.kill(victim, signal.SIGKILL)
        found = run.wait(lambda r: isinstance(r.event, Recovered), what="recovery", limit_s=60, since=at).event
        assert isinstance(found, Recovered)
        after = run.follower.records[at:]
        assert run.nodes["a"].workers() == pids["a"]
        assert run.nodes["c"].workers() == pids["c"]
        assert sum(isinstance(r.event, WorkerStayed) for r in after) == 2
        assert sum(isinstance(r.event, WorkerStarted) for r in after) == 1
        tiers = [r.event.tier for r in after if isinstance(r.event, Restored)]
        assert sorted(tiers) == ["peer", "process", "process"]
        assert found.lost_steps == 0
        print(found)
        reached = max(r.event.iteration for r in after if isinstance(r.event, StepCommitted))
        run.wait_step(reached + 20, world_size=3, since=at)
        leave_all(run)
        exact_account(run)
