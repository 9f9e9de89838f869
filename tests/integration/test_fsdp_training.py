"""Training with dealt out parameters under torchrun and etcd: to the end, and through lost and new nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elastic.checkpoint.layout import METADATA
from elastic.events import Cause, CheckpointSaved, Recovered, Restored, read_records
from elastic.local.etcd import EtcdServer
from tests.harness.survival import cluster, exact_account, lineage_losses, run_alone

pytestmark = pytest.mark.integration

FSDP2 = {"ELASTIC__TRAINING__STRATEGY": "fsdp2"}
DEFAULT_JOB = {
    "ELASTIC__JOB__TARGET": "jobs.pretrain_lm:job",
    "ELASTIC__MODEL__LAYERS": "2",
    "ELASTIC__MODEL__WIDTH": "36",
    "ELASTIC__MODEL__HEADS": "2",
    "ELASTIC__MODEL__CONTEXT": "16",
    "ELASTIC__CHECKPOINT__SAVE_INTERLEAVED_STEPS": "10",
}


def fragments(directory: Path) -> set[int]:
    """In how many pieces tensors lie in an iteration."""
    facts = json.loads((directory / METADATA).read_text())["state_dict_metadata"]
    return {max([1, *each["axis_fragmentations"]]) for each in facts.values()}


@pytest.mark.exhaustive
def test_the_default_job_on_two_nodes(tmp_path: Path, etcd: EtcdServer) -> None:
    expected = lineage_losses(run_alone(tmp_path / "alone", steps=20, **DEFAULT_JOB))
    with cluster(tmp_path, etcd.endpoint, steps=20, **DEFAULT_JOB, **FSDP2) as run:
        for name in ("a", "b"):
            run.start(name)
        assert [run.wait_exit(name) for name in ("a", "b")] == [0, 0]
        assert exact_account(run).steps == 20
        found = lineage_losses(read_records(run.save_path / "events"))
        assert found == pytest.approx(expected, rel=1e-5)
        assert fragments(run.save_path / "iteration_00000020") == {1, 2}


@pytest.mark.exhaustive
def test_three_two_three_one(tmp_path: Path, etcd: EtcdServer) -> None:
    """A lost node, a new one, two lost: restored from parts at another world size each time; at one, from replicas."""
    steps = 350
    expected = lineage_losses(run_alone(tmp_path / "alone", steps=steps))
    with cluster(tmp_path, etcd.endpoint, steps=steps, **FSDP2) as run:
        for name in ("a", "b", "c"):
            run.start(name)
        run.wait_step(60, world_size=3)
        at = run.now()
        run.nodes["c"].kill()
        run.wait_step(1, world_size=2, since=at)
        at = run.now()
        run.start("d")
        run.wait_step(1, world_size=3, since=at)
        planned = run.wait(
            lambda r: isinstance(r.event, Recovered) and r.event.cause is Cause.NODE_JOINED,
            what="the recovery from a join",
            limit_s=10,
            since=at,
        )
        assert planned.event.lost_steps == 0  # type: ignore[attr-defined]
        run.wait(lambda r: isinstance(r.event, CheckpointSaved), what="a save", limit_s=60, since=run.now())
        at = run.now()
        for name in ("b", "d"):
            run.nodes[name].kill()
        run.wait_step(1, world_size=1, since=at)
        assert run.wait_exit("a", limit_s=180) == 0
        exact_account(run)
        records = read_records(run.save_path / "events")
        restored = {r.generation: r.event.iteration for r in records if isinstance(r.event, Restored)}
        assert len([each for each in restored.values() if each > 0]) >= 3
        found = lineage_losses(records)
        assert found.keys() == expected.keys()
        for step in range(1, 51):
            assert found[step] == pytest.approx(expected[step], rel=1e-4), step
        # Later both runs are as good as one another, though rounding has led them apart.
        last = range(steps - 99, steps + 1)
        assert sum(found[step] for step in last) == pytest.approx(sum(expected[step] for step in last), rel=0.1)
