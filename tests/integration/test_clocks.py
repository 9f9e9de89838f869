"""Nodes whose wall clocks disagree, or jump: no decision rests on them. The machine's own clock is never touched."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from elastic.events import Recovered, WorkerLost
from elastic.local.cluster import Cluster
from elastic.local.etcd import EtcdServer
from tests.harness.clocks import another_time
from tests.harness.survival import cluster, exact_account, leave_all
from tests.harness.until import until

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

HOUR_S, DAY_S = 3600, 86400
STEPS = 100_000


def survives_a_killed_worker(run: Cluster, name: str) -> None:
    at = run.now()
    (victim,) = run.nodes[name].workers()
    os.kill(victim, signal.SIGKILL)
    run.wait(lambda r: isinstance(r.event, WorkerLost) and r.event.pid == victim, what="the kill", limit_s=10)
    recovered = run.wait(lambda r: isinstance(r.event, Recovered), what="recovery", limit_s=30, since=at)
    run.wait_step(1, world_size=2, limit_s=30, since=at)
    assert 0 < recovered.event.seconds < 30, "by a clock that does not jump"  # type: ignore[attr-defined]
    leave_all(run)
    exact_account(run)


def times(run: Cluster, node: str, *, since: int = 0) -> list[float]:
    return [r.time_s for r in run.follower.records[since:] if r.node == node]


@pytest.mark.parametrize("offset", ["-365d", "+365d", "+0 x1.5"])
def test_a_node_in_another_time(tmp_path: Path, etcd: EtcdServer, offset: str) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=STEPS) as run:
        run.start("a", **another_time(offset))
        run.start("b")
        run.wait_step(40, world_size=2)

        def apart() -> bool:
            run.now()
            apart_s = abs(max(times(run, "a")) - max(times(run, "b")))
            return apart_s > (300 * DAY_S if offset.endswith("d") else 3)

        until(apart, what="clocks that are apart", limit_s=60)
        survives_a_killed_worker(run, "a")


@pytest.mark.parametrize("jump_s", [-2 * HOUR_S, 2 * HOUR_S])
def test_a_clock_that_jumps(tmp_path: Path, etcd: EtcdServer, jump_s: int) -> None:
    """Nothing comes of the jump itself, and a fault after it is survived as any other."""
    offset = tmp_path / "offset"
    offset.write_text("+0")
    with cluster(tmp_path, etcd.endpoint, steps=STEPS) as run:
        run.start("a", **another_time(file=offset))
        run.start("b")
        first = run.wait_step(40, world_size=2)
        before, at = max(times(run, "a")), run.now()
        offset.write_text(f"{jump_s:+d}")
        jumped = run.wait(
            lambda r: r.node == "a" and abs(r.time_s - before - jump_s) < HOUR_S, what="the jump", limit_s=10, since=at
        )
        reached = run.wait_step(first.event.iteration + 100, since=at)  # type: ignore[attr-defined]
        assert reached.generation == jumped.generation == first.generation, "nobody was started again for that"
        survives_a_killed_worker(run, "a")
