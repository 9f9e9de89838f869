"""Dealt out parameters under torchrun and etcd: who survives keeps its process, and deals its model out anew."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from elastic.events import Restored, StepCommitted, WorkerStarted, WorkerStayed, read_records
from elastic.local.etcd import EtcdServer
from tests.harness.survival import cluster, durable, exact_account, run_alone
from tests.harness.until import until
from tests.integration.test_exact_torchrun import EXACT, assert_same_bits, assert_same_losses
from tests.integration.test_rejoin import end, kinds, pids, recovered, tiers

pytestmark = pytest.mark.integration

FSDP2 = {"ELASTIC__TRAINING__STRATEGY": "fsdp2", "ELASTIC__CHECKPOINT__MEMORY_EVERY_STEPS": "1"}
"""A copy after each step: nothing is lost but the step in flight."""


def test_a_lost_node_costs_the_others_no_process(tmp_path: Path, etcd: EtcdServer) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=100_000, **FSDP2) as run:
        for name in ("a", "b", "c"):
            run.start(name)
        run.wait_step(20, world_size=3)
        kept, at = pids(run, "b", "c"), run.now()
        run.nodes["a"].kill()  # rank 0, and mostly the leader
        found = recovered(run, since=at)
        after = run.follower.records[at:]
        assert (found.path, pids(run, "b", "c")) == ("rejoin", kept)
        assert (kinds(after, WorkerStayed), kinds(after, WorkerStarted), tiers(after)) == (2, 0, ["memory"] * 2)
        assert found.lost_steps <= 1
        end(run, world_size=2, since=at)


@pytest.mark.exhaustive
def test_survivors_deal_their_model_out_anew(tmp_path: Path, etcd: EtcdServer) -> None:
    """A lost node, a new one, a lost worker. The bits are those of one replica that nobody disturbed."""
    steps = 400
    run_alone(tmp_path / "alone", steps=steps, **EXACT)
    with cluster(tmp_path / "run", etcd.endpoint, steps=steps, **EXACT, **FSDP2) as run:
        for name in ("a", "b", "c"):
            run.start(name)
        run.wait_step(1, world_size=3)
        saved_bytes = run.wait(durable, what="a save", limit_s=60).event.bytes  # type: ignore[attr-defined]
        kept, at = pids(run, "b", "c"), run.now()
        run.nodes["a"].kill()  # rank 0, and mostly the leader
        assert recovered(run, since=at).lost_steps <= 1
        assert pids(run, "b", "c") == kept

        at = run.now()
        run.start("d")
        joined = recovered(run, since=at)
        assert (pids(run, "b", "c"), joined.lost_steps) == (kept, 0)
        assert tiers(run.follower.records[at:]) == ["memory"] * 3
        (new,) = [r.event for r in run.follower.records[at:] if isinstance(r.event, Restored) and r.node == "d"]
        ((way, came_bytes, seconds),) = new.arrived  # all of its rows are others'
        assert way == "peer"
        assert saved_bytes / 5 < came_bytes < saved_bytes / 3, "a third of the tensors, without headers and the like"
        assert seconds > 0

        # The sum of the second step tells that the first one's copy is everywhere; before it there is the disk alone.
        run.wait_step(new.iteration + 2, world_size=3, since=at)
        at = run.now()
        (victim,) = run.nodes["d"].workers()
        os.kill(victim, signal.SIGKILL)
        assert recovered(run, since=at).lost_steps <= 1
        assert pids(run, "b", "c") == kept
        assert [run.wait_exit(name, limit_s=120) for name in ("b", "c", "d")] == [0, 0, 0]
        assert exact_account(run).steps == steps
        assert_same_losses(run, tmp_path / "alone" / "checkpoint")
        assert_same_bits(run.save_path, tmp_path / "alone" / "checkpoint")


@pytest.mark.exhaustive
def test_the_last_of_two_nodes_saves_the_parts_of_both_before_it_goes(tmp_path: Path, etcd: EtcdServer) -> None:
    """It waits for another node, with the lost one's last copy in its memory."""
    seldom = {"ELASTIC__CHECKPOINT__SAVE_INTERLEAVED_STEPS": "200"}
    with cluster(tmp_path, etcd.endpoint, steps=300, nnodes="2:4", **FSDP2 | seldom) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(33, world_size=2)
        run.nodes["a"].kill()
        log = run.nodes["b"].log
        until(lambda: "is over here" in log.read_text(), what="word of the end", limit_s=30)
        run.nodes["b"].signal(signal.SIGTERM)
        assert run.wait_exit("b", limit_s=30) == 75
        records = read_records(run.save_path / "events")
        done = max(r.event.iteration for r in records if isinstance(r.event, StepCommitted))
        (saved,) = [r.event.iteration for r in records if durable(r)]  # type: ignore[union-attr]
        assert saved in (done - 1, done), "what was not copied yet was the step in flight"
        at = run.now()
        for name in ("c", "d"):
            run.start(name)
        run.wait_step(1, world_size=2, since=at)
        assert {r.event.iteration for r in run.follower.records[at:] if isinstance(r.event, Restored)} == {saved}
        assert [run.wait_exit(name, limit_s=60) for name in ("c", "d")] == [0, 0]
        assert exact_account(run).steps == 300
