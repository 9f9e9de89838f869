"""Scenario D under real torchrun: all nodes die, fewer come back, and each reads its share of every file."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic.events import Restored, read_records
from elastic.local.etcd import EtcdServer
from tests.harness.survival import cluster, durable, exact_account, lineage_losses, run_alone

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

STEPS = 100


def test_fewer_nodes_come_back_and_share_the_reading(tmp_path: Path, etcd: EtcdServer) -> None:
    undisturbed = lineage_losses(run_alone(tmp_path / "alone", steps=STEPS))
    with cluster(tmp_path, etcd.endpoint, steps=STEPS, nnodes="2:4", ELASTIC__CHECKPOINT__LOAD_BALANCED="true") as run:
        for name in ("a", "b", "c"):
            run.start(name)
        run.wait_step(30, world_size=3)
        run.wait(durable, what="a save", limit_s=60)
        for name in ("a", "b", "c"):
            run.nodes[name].kill()
        saved = max(r.event.iteration for r in run.follower.records if durable(r))  # type: ignore[attr-defined]
        at = run.now()
        for name in ("a", "b"):
            run.start(name)
        run.wait_world(2, since=at)
        assert [run.wait_exit(name, limit_s=120) for name in ("a", "b")] == [0, 0]
        assert exact_account(run).steps == STEPS
        records = read_records(run.save_path / "events")
    last = max(r.generation for r in records if isinstance(r.event, Restored))
    back = [r.event for r in records if isinstance(r.event, Restored) and r.generation == last]
    assert [each.tier for each in back] == ["disk"] * 2, back
    assert {each.iteration >= saved for each in back} == {True}
    losses = lineage_losses(records)
    for step in range(1, STEPS + 1):
        assert losses[step] == pytest.approx(undisturbed[step], rel=1e-5), f"step {step}"
