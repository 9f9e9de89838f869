"""Real tools: curves of a run whose rank 0 is killed again and again, and runs that are found again."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from elastic.events import Notice, RunFinished
from elastic.local.etcd import EtcdServer
from elastic.tracking.tracker import TrackedRun, Tracker
from elastic.tracking.tracking import open_tracker
from tests.harness.survival import GLOBAL_BATCH, cluster, exact_account, run_alone

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

STEPS = 400


def test_tensorboard_curves_rise_strictly_though_rank_0_is_killed_three_times(tmp_path: Path, etcd: EtcdServer) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    asked = {"ELASTIC__TRACKING__TO": "tensorboard", "ELASTIC__TRACKING__EVERY_STEPS": "1"}
    with cluster(tmp_path, etcd.endpoint, steps=STEPS, **asked) as run:
        for number in range(1, 5):
            run.start(f"node{number}")
        seen = run.wait_step(10, world_size=4)
        for number in range(1, 4):
            run.nodes[f"node{number}"].kill()
            seen = run.wait_step(seen.event.iteration + 10, world_size=4 - number, after=seen.generation)
        assert run.wait_exit("node4", limit_s=90) == 0
        exact_account(run)
    found = EventAccumulator(str(run.save_path / "tracking"))
    found.Reload()
    steps = [point.step for point in found.Scalars("loss")]
    assert all(before < after for before, after in itertools.pairwise(steps)), steps
    assert steps[-1] == STEPS * GLOBAL_BATCH
    assert len(steps) >= STEPS - 3, "each kill may cost the point of one step"
    assert len(list((run.save_path / "tracking").glob("events.*"))) >= 4


def test_a_directory_that_cannot_be_made_costs_the_curves_and_no_step(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    asked = {"ELASTIC__TRACKING__TO": "tensorboard", "ELASTIC__TRACKING__DIRECTORY": str(tmp_path / "file" / "in")}
    records = run_alone(tmp_path, steps=20, **asked)
    assert [r.event.iteration for r in records if isinstance(r.event, RunFinished)] == [20]
    told = [r.event.text for r in records if isinstance(r.event, Notice)]
    assert sum("cannot be made (Not a directory)" in text for text in told) == 1, told


def tell(tracker: Tracker, *, begins: int, last: int) -> int:
    """One life of a worker: what it logs is 10 samples apart; up to where there were points already."""
    told = tracker.begin(begins)
    for samples in range(begins + 10, last + 1, 10):
        if samples > told:
            tracker.log({"loss": 1 / samples}, samples=samples)
    tracker.close()
    return told


def a_run(directory: Path) -> TrackedRun:
    return TrackedRun(name="job-1", project="elastic", directory=str(directory), settings={"training.steps": 5})


def test_mlflow_goes_on_in_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="not run: mlflow-skinny is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tmp_path.as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    trackers = [open_tracker("mlflow", a_run(tmp_path)) for _ in range(2)]
    assert tell(trackers[0], begins=0, last=50) == 0
    assert tell(trackers[1], begins=30, last=80) == 50
    client, run_id = trackers[1].client, trackers[1].run_id
    assert trackers[0].run_id == run_id
    assert [metric.step for metric in client.get_metric_history(run_id, "loss")] == list(range(10, 90, 10))
    assert client.get_run(run_id).data.params == {"training.steps": "5"}


def test_wandb_goes_on_under_the_same_id_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="not run: wandb is not installed")
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    for begins, last in ((0, 50), (50, 80)):
        assert tell(open_tracker("wandb", a_run(tmp_path)), begins=begins, last=last) == begins
    kept = sorted(path.name for path in (tmp_path / "wandb").glob("offline-run-*"))
    assert len(kept) == 2
    assert all("job-1" in name for name in kept)
