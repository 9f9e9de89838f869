"""Nodes whose wall clocks disagree, or jump: no decision rests on them. The machine's own clock is never touched."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from elastic.events import WorkerLost
from elastic.local.etcd import EtcdServer
from tests.harness.survival import cluster, exact_account

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

LIBRARIES = [Path("/usr/lib") / machine / "faketime/libfaketime.so.1" for machine in os.listdir("/usr/lib")]


@pytest.mark.parametrize("offset", ["-365d", "+365d", "+0 x1.5"])
def test_a_node_in_another_time(tmp_path: Path, etcd: EtcdServer, offset: str) -> None:
    library = next((str(path) for path in LIBRARIES if path.exists()), None)
    if library is None:
        pytest.skip("needs libfaketime (Debian: apt-get install libfaketime)")
    faked = {"LD_PRELOAD": library, "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    with cluster(tmp_path, etcd.endpoint, steps=400) as run:
        run.start("a", **faked)
        run.start("b")
        first = run.wait_step(40, world_size=2)
        (victim,) = run.nodes["a"].workers()
        os.kill(victim, signal.SIGKILL)
        run.wait(lambda r: isinstance(r.event, WorkerLost) and r.event.pid == victim, what="the kill", limit_s=10)
        assert [run.wait_exit(name, limit_s=120) for name in ("a", "b")] == [0, 0]
        assert exact_account(run).steps == 400
        times = {node: max(r.time_s for r in run.follower.records if r.node == node) for node in ("a", "b")}
        if offset.endswith("d"):
            assert abs(times["a"] - times["b"]) > 300 * 86400, f"the clocks were apart, not as in {first}"
