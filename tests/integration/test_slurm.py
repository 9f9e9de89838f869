"""The sbatch script on a real Slurm of four daemons: preempted or warned, the job is queued again and loses nothing."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic.data.audit import account
from elastic.events import JobEnded, StepCommitted, read_records
from elastic.local.etcd import find_etcd, free_port
from elastic.local.follow import Follower
from elastic.local.node import ROOT
from tests.harness.slurm import Slurm, cluster
from tests.harness.survival import SETTINGS

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

SCRIPT = ROOT / "deploy" / "slurm" / "train.sbatch"


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short name: a socket lies in it."""
    path = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


def submit(slurm: Slurm, place: Path, *, nodes: str) -> str:
    """The training as users would submit it, with an etcd of its own."""
    environ = {
        **SETTINGS,
        "ELASTIC__TRAINING__STEPS": "100000",
        "ELASTIC__CHECKPOINT__SAVE_PATH": str(place / "checkpoint"),
        "ELASTIC_HOME": str(ROOT),
        "TORCHRUN": str(Path(sys.executable).with_name("torchrun")),
        "ETCD": find_etcd(),
        "ETCD_ADDRESS": "127.0.0.1",
        "ETCD_PORT": str(free_port()),
        "SHUTDOWN_TIMEOUT_S": "30",
    }
    options = (f"--nodes={nodes}", "--partition=low", f"--output={place}/job.log", f"--chdir={place}")
    return slurm.submit(SCRIPT, options=options, **environ)


def seen(run: Follower) -> int:
    """How many records there are by now."""
    run.read()
    return len(run.records)


def steps_again(run: Follower, *, world_size: int, more: int, since: int, limit_s: float = 90) -> None:
    """Wait for some steps of a world of this size, committed after those seen so far."""
    count = 0

    def enough(record: object) -> bool:
        nonlocal count
        event = record.event  # type: ignore[attr-defined]
        count += isinstance(event, StepCommitted) and event.world_size == world_size
        return count >= more

    run.wait_for(enough, what=f"{more} steps of a world of {world_size}", limit_s=limit_s, since=since)


def assert_nothing_lost(place: Path) -> None:
    """Every step was computed once, every sample used once."""
    records = read_records(place / "checkpoint" / "events")
    steps = sorted({(r.event.iteration, r.generation) for r in records if isinstance(r.event, StepCommitted)})
    assert [step for step, _ in steps] == list(range(1, len(steps) + 1)), "a step was computed again"
    assert len({generation for _, generation in steps}) > 1
    result = account(records, order=None)
    assert not result.problems, result.problems
    assert (result.used_twice, result.never_used) == (0, 0)


def end(slurm: Slurm, job: str, run: Follower) -> None:
    """A person ends the job in order: agents save and leave, and it is not queued again."""
    since, before = seen(run), slurm.state(job)[1]
    slurm.say("scancel", "--batch", "--signal=USR2", job)
    run.wait_for(lambda r: isinstance(r.event, JobEnded), what="the end", limit_s=60, since=since)
    slurm.wait_state(job, "FAILED", limit_s=60)
    assert slurm.state(job) == ("FAILED", before), "75 is no success to Slurm, and it stays ended"


def test_preempted_it_is_queued_again_and_goes_on_with_nothing_lost(place: Path) -> None:
    with cluster(place) as slurm, Follower(place / "checkpoint" / "events") as run:
        job = submit(slurm, place, nodes="4")
        steps_again(run, world_size=4, more=30, since=0)
        before = slurm.state(job)[1]  # an agent for which etcd came too late is a restart as well
        urgent = place / "urgent.sh"
        urgent.write_text("#!/bin/bash\nsrun true\n")
        other = slurm.submit(urgent, options=("--nodes=4", "--partition=high", f"--output={place}/urgent.log"))
        slurm.wait_state(other, "COMPLETED", limit_s=60)
        slurm.wait_state(job, "RUNNING", limit_s=60, restarts=before + 1)
        steps_again(run, world_size=4, more=30, since=seen(run))
        end(slurm, job, run)
        assert_nothing_lost(place)


def test_warned_before_its_time_is_over_it_leaves_and_is_queued_again(place: Path) -> None:
    with cluster(place) as slurm, Follower(place / "checkpoint" / "events") as run:
        job = submit(slurm, place, nodes="2")
        steps_again(run, world_size=2, more=20, since=0)
        before = slurm.state(job)[1]
        slurm.say("scancel", "--signal=USR1", job)  # what --signal=USR1@120 does
        slurm.wait_state(job, "RUNNING", limit_s=60, restarts=before + 1)
        steps_again(run, world_size=2, more=20, since=seen(run))
        end(slurm, job, run)
        # Submitted anew it has another number, and an etcd that knows nothing: it goes on all the same.
        again = submit(slurm, place, nodes="2")
        assert again != job
        steps_again(run, world_size=2, more=20, since=seen(run))
        end(slurm, again, run)
        assert_nothing_lost(place)
