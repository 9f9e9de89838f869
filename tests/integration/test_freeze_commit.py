"""A worker, or its agent, frozen exactly between two points of a commit, thawed when others have gone on: nothing of it
is accepted. What was committed before the freeze stays committed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from elastic.checkpoint.layout import TRACKER
from elastic.events import Restored, read_records
from elastic.local.cluster import Cluster
from elastic.local.etcd import EtcdServer
from elastic.local.node import descendants
from tests.harness.faults import came_to, runs, state_of
from tests.harness.survival import cluster, durable, exact_account

pytestmark = pytest.mark.integration

STEPS = 150
POINTS = [*(f"checkpoint.{point}" for point in range(1, 9)), "agent.commit"]


def frozen_at(run: Cluster, name: str, point: str) -> int:
    """The process of this node that stopped itself at the armed point."""
    import select

    node = run.nodes[name]
    for _ in range(1200):
        found = [pid for pid in (node.pid, *descendants(node.pid)) if state_of(pid) == "T"]
        if found:
            return found[0]
        assert node.process.poll() is None, node.log.read_text()[-2000:]
        select.select([], [], [], 0.05)
    raise AssertionError(f"nobody stopped at {point}")


def saved(run: Cluster) -> dict[int, list[int]]:
    """Iteration -> the generations that say they committed it."""
    found: dict[int, list[int]] = {}
    for record in read_records(run.save_path / "events"):
        if durable(record):
            found.setdefault(record.event.iteration, []).append(record.generation)
    return found


def committed_before(point: str) -> bool:
    return point in ("checkpoint.7", "checkpoint.8")


def freeze_and_thaw(tmp_path: Path, etcd: EtcdServer, point: str) -> None:
    """The first save of rank 0, on node a, stops at the point; node b goes on alone and finishes; then a thaws."""
    with cluster(tmp_path, etcd.endpoint, steps=STEPS, ELASTIC__RENDEZVOUS__TTL_S="60") as run:
        run.start("a", ELASTIC_FAILPOINT=f"{point}=stop")
        run.start("b")
        pid = frozen_at(run, "a", point)
        agent = run.nodes["a"].pid
        assert came_to(pid, "T")
        os.kill(agent, signal.SIGSTOP)
        assert came_to(agent, "T")
        try:
            run.wait(lambda r: isinstance(r.event, Restored) and r.generation > 1, what="going on", limit_s=60)
            assert run.wait_exit("b", limit_s=90) == 0
            before = (run.save_path / TRACKER).read_text()
            assert int(before) == STEPS
            thawed = [one for one in (pid, agent) if runs(one)]
            assert thawed, "there is a zombie to thaw"
            for one in thawed:  # the worker before its agent: it has every chance to go on
                os.kill(one, signal.SIGCONT)
                if one == pid and pid != agent:
                    came_to(pid, "", "Z", limit_s=1.0)
            code = run.wait_exit("a", limit_s=60)
        finally:
            for one in (pid, agent):
                if runs(one):
                    os.kill(one, signal.SIGCONT)
        assert code == 0, "it hears that the job is done"
        assert (run.save_path / TRACKER).read_text() == before, "the tracker did not move back"
        first = min(saved(run))
        assert (1 in saved(run)[first]) <= committed_before(point), saved(run)
        assert exact_account(run).steps == STEPS
        # And a reader finds the last state.
        restored = run.now()
        run.start("c")
        assert run.wait_exit("c", limit_s=60) == 0
        found = run.wait(lambda r: isinstance(r.event, Restored), what="restored", limit_s=5, since=restored)
        assert found.event.iteration == STEPS  # type: ignore[attr-defined]
        assert json.dumps(saved(run))


@pytest.mark.exhaustive
@pytest.mark.parametrize("point", POINTS)
def test_frozen_between_each_pair_of_points(tmp_path: Path, etcd: EtcdServer, point: str) -> None:
    freeze_and_thaw(tmp_path, etcd, point)
