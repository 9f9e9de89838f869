"""What the survival tests share: a cluster of the small job, and checks of the whole history that it left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from elastic.data.audit import Account, account
from elastic.errors import ExitCode
from elastic.events import CheckpointSaved, Record, Restored, StepCommitted, read_records
from elastic.local.cluster import Cluster, ClusterSpec
from elastic.local.node import ROOT

GLOBAL_BATCH = 22  # 6 micro-batches of 4, the last of 2: no world size but 1 splits it evenly
SETTINGS = {
    "ELASTIC__JOB__TARGET": "tests.harness.small_job:job",
    "ELASTIC__TRAINING__GLOBAL_BATCH_SIZE": str(GLOBAL_BATCH),
    "ELASTIC__TRAINING__MICRO_BATCH_SIZE": "4",
    "ELASTIC__CHECKPOINT__SAVE_INTERLEAVED_STEPS": "25",
    "ELASTIC__METRICS__PORT": "19400",
}


def cluster(
    directory: Path,
    etcd_endpoint: str,
    *,
    steps: int,
    options: tuple[str, ...] = (),
    nnodes: str = "1:4",
    **more: str,
) -> Cluster:
    """A cluster of the small job, with nothing started yet."""
    environ = {**SETTINGS, "ELASTIC__TRAINING__STEPS": str(steps), **more}
    return Cluster(
        ClusterSpec(directory=directory, etcd_endpoint=etcd_endpoint, environ=environ, options=options, nnodes=nnodes)
    )


def run_alone(directory: Path, *, steps: int, **more: str) -> list[Record]:
    """The undisturbed run: a world of one, from the first to the last step."""
    environ = {
        **os.environ,
        **SETTINGS,
        "ELASTIC__TRAINING__STEPS": str(steps),
        "ELASTIC__CHECKPOINT__SAVE_PATH": str(directory / "checkpoint"),
        **more,
    }
    done = subprocess.run(
        [sys.executable, "elastic/worker.py"], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return read_records(directory / "checkpoint" / "events")


def lineage_losses(records: list[Record]) -> dict[int, float]:
    """Step -> loss of the steps that led to the final state: a later generation's word beats an earlier one's."""
    losses: dict[int, tuple[int, float]] = {}
    for record in records:
        if isinstance(record.event, StepCommitted):
            old = losses.get(record.event.iteration)
            if old is None or old[0] <= record.generation:
                losses[record.event.iteration] = (record.generation, record.event.loss)
    return {step: loss for step, (_, loss) in sorted(losses.items())}


def exact_account(run: Cluster) -> Account:
    """The sample account of a run, which must be clean."""
    result = account(read_records(run.save_path / "events"), order=None)
    assert not result.problems, result.problems
    assert (result.used_twice, result.never_used) == (0, 0)
    return result


def durable(record: Record) -> bool:
    """Whether the record tells of a save that was committed, and not of a copy in memory."""
    return isinstance(record.event, CheckpointSaved) and record.event.tier == "disk"


def restored_steps(records: list[Record]) -> dict[int, int]:
    """Generation -> the step that it went on from."""
    return {r.generation: r.event.iteration for r in records if isinstance(r.event, Restored)}


def leave_all(run: Cluster) -> None:
    """End a run long before its last step: everybody who is there leaves, and what was done is durable."""
    left = [name for name, node in run.nodes.items() if node.process.poll() is None]
    for name in left:
        run.nodes[name].signal(signal.SIGTERM)
    ends = {name: run.wait_exit(name) for name in left}
    assert set(ends.values()) == {int(ExitCode.PREEMPTED)}, ends
