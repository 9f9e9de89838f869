"""Real deaths: a process that saves is killed at every one of its operations, others ask for the same root at once."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from elastic.checkpoint.root import claim
from elastic.checkpoint.seams import LockCommitter
from elastic.checkpoint.storage import PosixStorage
from elastic.errors import UsageError
from tests.harness.checkpoints import Bench, make_run, meta, same
from tests.harness.saving import FileCommitter, in_child

pytestmark = pytest.mark.integration


class Telling(PosixStorage):
    """Tells the parent of each operation before it begins."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe

    def write(self, path: str, data: bytes) -> None:
        os.write(self.pipe, b".")
        super().write(path, data)

    def publish(self, source: str, target: str) -> None:
        os.write(self.pipe, b".")
        super().publish(source, target)

    def sync_dir(self, path: str) -> None:
        os.write(self.pipe, b".")
        super().sync_dir(path)


def save_until_killed(bench: Bench, pipe: int, start: int) -> None:
    run = make_run()
    manager = bench.manager(storage=Telling(pipe), save_max=2)
    run.steps = manager.restore(run.tracked).iteration
    for iteration in range(start + 1, start + 100):
        run.step()
        assert manager.save(run.tracked, meta(iteration, generation=start)).saved


def test_killed_at_every_operation(tmp_path):
    torch.set_num_threads(1)
    bench = Bench(tmp_path / "root", committer=FileCommitter(tmp_path / "record"))
    truth = make_run()
    reached = 0
    kills = 0
    for operations in range(1, 26):
        read, write = os.pipe()
        pid = in_child(lambda w=write, s=reached: save_until_killed(bench, w, s))
        os.close(write)
        seen = 0
        while seen < operations and (told := os.read(read, operations - seen)):
            seen += len(told)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        os.close(read)
        kills += os.WIFSIGNALED(status)
        other = make_run(seed=5)
        record = bench.committer.record()
        iteration = bench.manager().restore(other.tracked).iteration
        # Before the very first commit a complete save may be adopted: there is no record that speaks against it.
        assert iteration == (record.iteration if record else min(iteration, 1))
        assert iteration >= reached
        truth.step(iteration - reached)
        reached = iteration
        assert same(other, truth) or iteration == 0
    assert kills == 25
    assert reached > 10


def test_processes_that_ask_at_once_agree(tmp_path):
    root, go = str(tmp_path / "root"), os.pipe()
    answer = os.pipe()

    def ask() -> None:
        os.close(go[1])
        os.read(go[0], 1)  # ends for all at once when the parent closes its side
        os.write(answer[1], (claim(root, job_id=None).job_id + "\n").encode())

    pids = [in_child(ask) for _ in range(4)]
    os.close(go[1])
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 4
    os.close(answer[1])
    with os.fdopen(answer[0]) as answers:
        told = answers.read().split()
    os.close(go[0])
    assert len(told) == 4
    assert len(set(told)) == 1


def test_a_forked_helper_does_not_keep_the_lock(tmp_path):
    lock = LockCommitter(str(tmp_path))
    hold, release = os.pipe()

    def helper() -> None:
        os.close(release)
        os.read(hold, 1)

    pid = in_child(helper)

    def second() -> None:
        with pytest.raises(UsageError, match="in use"):
            LockCommitter(str(tmp_path))

    assert os.waitpid(in_child(second), 0)[1] == 0
    lock.close()
    LockCommitter(str(tmp_path)).close()  # the helper still lives
    os.close(release)
    assert os.waitpid(pid, 0)[1] == 0
    os.close(hold)
