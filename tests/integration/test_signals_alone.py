"""Signals that reach workers themselves: plain python, torch's own agent, and a batch system that signals everybody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from elastic.data.audit import account
from elastic.events import CheckpointSaved, Restored, StepCommitted, read_records
from elastic.local.etcd import EtcdServer
from elastic.local.follow import Follower
from elastic.local.node import ROOT, descendants
from tests.harness.survival import SETTINGS, cluster, exact_account

pytestmark = pytest.mark.integration

TORCHRUN = str(Path(sys.executable).with_name("torchrun"))


@contextmanager
def started(command: Sequence[str], save_path: Path, steps: int) -> Iterator[subprocess.Popen[bytes]]:
    environ = {**os.environ, **SETTINGS, "ELASTIC__TRAINING__STEPS": str(steps)}
    environ |= {"ELASTIC__CHECKPOINT__SAVE_PATH": str(save_path), "ELASTIC__CHECKPOINT__SAVE_INTERLEAVED_STEPS": "9999"}
    process = subprocess.Popen(command, cwd=ROOT, env=environ, stderr=subprocess.DEVNULL)
    below: list[int] = []
    try:
        yield process
        below = descendants(process.pid)
        process.wait(30)
    finally:
        process.kill()
        process.wait()
        for pid in below:
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL)


def leave_and_go_on(command: Sequence[str], save_path: Path, *, codes: tuple[int, int]) -> None:
    """A signal in the middle, then the same command again: not one step is done twice."""
    with started(command, save_path, 100_000) as process, Follower(save_path / "events") as follower:
        follower.wait_for(
            lambda r: isinstance(r.event, StepCommitted) and r.event.iteration >= 30, what="step 30", limit_s=60
        )
        process.send_signal(signal.SIGTERM)
    assert process.returncode == codes[0]
    (saved,) = {r.event.iteration for r in read_records(save_path / "events") if isinstance(r.event, CheckpointSaved)}
    with started(command, save_path, saved + 20) as process:
        process.wait(60)
    assert process.returncode == codes[1]
    records = read_records(save_path / "events")
    assert max(r.event.iteration for r in records if isinstance(r.event, Restored)) == saved
    found = account(records, order=None)
    assert (found.problems, found.used_twice, found.never_used, found.recomputed_steps) == ((), 0, 0, 0)


def test_plain_python_saves_and_leaves(tmp_path: Path) -> None:
    leave_and_go_on([sys.executable, "elastic/worker.py"], tmp_path / "run", codes=(75, 0))


@pytest.mark.exhaustive
def test_under_torchs_own_agent_all_workers_save_and_leave(tmp_path: Path) -> None:
    meet = ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-id=one")
    command = [TORCHRUN, *meet, "--nproc-per-node=2", "elastic/worker.py"]
    leave_and_go_on(command, tmp_path / "run", codes=(1, 0))  # 1 is torchrun's own, whatever its workers say


@pytest.mark.exhaustive
def test_everybody_on_one_node_is_signalled(tmp_path: Path, etcd: EtcdServer) -> None:
    with cluster(tmp_path, etcd.endpoint, steps=200) as run:
        for name in ("a", "b"):
            run.start(name)
        run.wait_step(40, world_size=2)
        node = run.nodes["b"]
        for pid in (*node.workers(), node.pid):
            os.kill(pid, signal.SIGUSR1)
        assert run.wait_exit("b", limit_s=45) == 75
        assert run.wait_exit("a", limit_s=120) == 0
        assert (exact_account(run).steps, exact_account(run).recomputed_steps) == (200, 0)


@pytest.mark.exhaustive
def test_a_step_may_take_as_long_as_the_stop_time_allows(tmp_path: Path, etcd: EtcdServer) -> None:
    job = {"ELASTIC__JOB__TARGET": "tests.harness.small_job:slow"}
    with cluster(tmp_path, etcd.endpoint, steps=400, options=("--shutdown-timeout=60",), **job) as run:
        run.start("a")
        run.wait_step(1)
        run.nodes["a"].signal(signal.SIGTERM)
        assert run.wait_exit("a", limit_s=60) == 75
        records = read_records(run.save_path / "events")
        done = [r.event.iteration for r in records if isinstance(r.event, StepCommitted)]
        saved = [r.event.iteration for r in records if isinstance(r.event, CheckpointSaved) and r.event.tier == "disk"]
        assert done[-1] > 1, "the step that was under way is done"
        assert saved[-1] == done[-1], "and saved"
