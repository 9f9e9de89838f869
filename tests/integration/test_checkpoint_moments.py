"""Saves that end in the middle: killed at each numbered point, killed at any moment, traced from outside."""

from __future__ import annotations

import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from elastic.checkpoint.storage import PosixStorage
from elastic.clock import SYSTEM_CLOCK
from tests.harness.checkpoints import Bench, make_run, same
from tests.harness.power import Call
from tests.harness.saving import FileCommitter, in_child, save_for_ever
from tests.unit.test_checkpoint_power import assert_order

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]

# make_dir, 2 shards, 2 files of the seed, manifest, sync, publish, sync, tracker: see elastic/checkpoint/commit.py.
OPERATIONS_OF_A_SAVE = 10


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


class Deadly(PosixStorage):
    """Kills its own process at the n-th operation that changes something, before or after it is done."""

    def __init__(self, at: int, *, after: bool) -> None:
        self._left, self._after = at, after

    def _kill(self, verb, *args):
        self._left -= 1
        if self._left < 0 and not self._after:
            os.kill(os.getpid(), signal.SIGKILL)
        done = verb(*args)
        if self._left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    def make_dir(self, path):
        return self._kill(super().make_dir, path)

    def write(self, path, data):
        return self._kill(super().write, path, data)

    def publish(self, source, target):
        return self._kill(super().publish, source, target)

    def sync_dir(self, path):
        return self._kill(super().sync_dir, path)

    def replace(self, path, data):
        return self._kill(super().replace, path, data)

    def remove_tree(self, path):
        return self._kill(super().remove_tree, path)


class Job:
    """A run through many deaths. `survive` checks what the next start finds."""

    def __init__(self, path: Path) -> None:
        self.bench = Bench(path / "root", committer=FileCommitter(path / "record"))
        self.truth = make_run(seed=1)
        self.reached = 0
        self.generation = 1

    def survive(self) -> None:
        self.generation += 1
        other = make_run(seed=5)
        before = self.bench.committer.record()
        iteration = self.bench.manager(generation=self.generation).restore(other.tracked).iteration
        assert iteration >= max(self.reached, before.iteration if before else 0)
        after = self.bench.committer.record()
        assert after is None or (after.iteration, after.generation) == (iteration, self.generation)
        self.truth.step(iteration - self.reached)
        assert same(other, self.truth) or iteration == 0
        self.reached = iteration
        self.generation += 1


LONG = pytest.mark.exhaustive
BESIDE = [
    pytest.param(False, id="training waits"),
    pytest.param(True, id="training goes on", marks=LONG),
]


@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_five_times_at_each_numbered_point(tmp_path, after, beside):
    job = Job(tmp_path)
    while job.reached == 0:  # the first iteration, so that what follows happens to a run under way
        in_child(lambda: save_for_ever(job.bench, generation=1, limit=2))
        os.wait()
        job.survive()
    kills = 0
    for at in range(OPERATIONS_OF_A_SAVE):
        for _ in range(5):
            storage = Deadly(at, after=after)
            pid = in_child(
                lambda s=storage: save_for_ever(job.bench, generation=job.generation, storage=s, beside=beside)
            )
            _, status = os.waitpid(pid, 0)
            assert os.WTERMSIG(status) == signal.SIGKILL
            kills += 1
            job.survive()
    assert kills == 5 * OPERATIONS_OF_A_SAVE
    # From the complete manifest on, five times at each point: what was complete is adopted, so the run advances.
    assert job.reached > 5 * 3


@pytest.mark.parametrize(
    ("times", "beside"), [(15, True), pytest.param(200, False, marks=LONG), pytest.param(200, True, marks=LONG)]
)
def test_killed_at_random_moments(tmp_path, times, beside):
    job, dice, kills, heard = Job(tmp_path), random.Random(7), 0, 0
    for _ in range(times):
        read, write = os.pipe()

        def work(write=write):
            save_for_ever(job.bench, generation=job.generation, saved=lambda: os.write(write, b"."), beside=beside)

        pid = in_child(work)
        os.close(write)
        saves, took_s = dice.choice((0, 1, 2)), 0.05
        for _ in range(saves):
            began_s = SYSTEM_CLOCK.monotonic_s()
            assert os.read(read, 1) == b"."
            took_s = SYSTEM_CLOCK.monotonic_s() - began_s
        select.select([], [], [], dice.uniform(0.0, took_s))  # a moment of the next save, however slow the machine is
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        os.close(read)
        kills += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        heard += saves
        job.survive()
    assert kills == times
    assert job.reached >= heard > times // 3


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_the_order_of_the_calls_as_the_system_sees_them(tmp_path):
    trace, root = tmp_path / "trace", tmp_path / "root"
    verbs = "write,fsync,fdatasync,rename,renameat,renameat2,link,linkat"
    done = subprocess.run(
        [
            *("strace", "-f", "--seccomp-bpf", "-y", "-s", "0", "-e", f"trace={verbs}", "-o", str(trace)),
            *(sys.executable, "-m", "tests.harness.saving", str(root)),
        ],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode and "ptrace" in done.stderr.lower():
        pytest.skip(f"strace may not trace here: {done.stderr.strip()[-100:]}")
    assert done.returncode == 0, done.stderr
    calls = [call for line in trace.read_text().splitlines() if (call := parse(line, str(root))) is not None]
    _, synced, tracker = assert_order(calls, root)
    # The commit record of this test is a file, too: its rename is the commit.
    commits = [index for index, call in enumerate(calls) if call.verb == "rename" and call.target.endswith("/record")]
    assert len(commits) == 1
    assert synced < commits[0] < tracker


def parse(line: str, root: str) -> Call | None:
    """A line of strace as a call on the root or beside it; consecutive writes of a file count once."""
    if found := re.search(r"\b(write|fsync|fdatasync)\(\d+<([^>]*)>", line):
        verb, path = found.groups()
        if path.startswith(os.path.dirname(root) + "/"):
            return Call(verb=verb.replace("fdata", "f"), path=path)
    elif found := re.search(r"\b(rename|link)\w*\((.*)\) += 0", line):
        names = re.findall(r'"([^"]*)"', found[2])
        return Call(verb=found[1], path=names[0], target=names[1])
    return None
