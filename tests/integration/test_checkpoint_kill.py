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
    """Tells the parent of each operation before it begins, and waits for leave to go on."""

    def __init__(self, told: int, leave: int) -> None:
        self.told, self.leave = told, leave

    def ask(self) -> None:
        os.write(self.told, b".")
        assert os.read(self.leave, 1)

    def write(self, path: str, data: bytes) -> None:
        self.ask()
        super().write(path, data)

    def publish(self, source: str, target: str) -> None:
        self.ask()
        super().publish(source, target)

    def sync_dir(self, path: str) -> None:
        self.ask()
        super().sync_dir(path)


def save_until_killed(bench: Bench, storage: Telling, start: int, generation: int | None) -> None:
    run = make_run()
    manager = bench.manager(storage=storage, save_max=2, generation=generation)
    run.steps = manager.restore(run.tracked).iteration
    for iteration in range(start + 1, start + 100):
        run.step()
        assert manager.save(run.tracked, meta(iteration, generation=generation or 1)).saved


def killed_before(operation: int, bench: Bench, start: int, generation: int | None) -> None:
    """A process that restores and saves on from there, killed when it is about to do its so many-th operation."""
    told, leave = os.pipe(), os.pipe()
    pid = in_child(lambda: save_until_killed(bench, Telling(told[1], leave[0]), start, generation))
    os.close(told[1])
    os.close(leave[0])
    for _ in range(operation - 1):
        assert os.read(told[0], 1)
        os.write(leave[1], b".")
    assert os.read(told[0], 1)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(told[0])
    os.close(leave[1])
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


UNCOMMITTED = 8
"""The operation behind the rename, before the commit: what it leaves is complete, and nobody has counted it."""
DEATHS = (*range(1, UNCOMMITTED), UNCOMMITTED, UNCOMMITTED, UNCOMMITTED, *range(UNCOMMITTED, 26))


@pytest.mark.parametrize("adopting", [False, True])
def test_killed_at_every_operation(tmp_path, adopting):
    """Without a generation nobody adopts: once there is a record, it alone says what is restored."""
    torch.set_num_threads(1)
    bench = Bench(tmp_path / "root", committer=FileCommitter(tmp_path / "record"))
    truth = make_run()
    reached = 0
    unrecorded = 0
    for attempt, operation in enumerate(DEATHS, start=1):
        generation = 2 * attempt if adopting else None
        killed_before(operation, bench, reached, generation)
        before = bench.committer.record()
        other = make_run(seed=5)
        manager = bench.manager(generation=None if generation is None else generation + 1)
        iteration = manager.restore(other.tracked).iteration
        after = bench.committer.record()
        if adopting:
            # What is gone on from is committed: what was, or the complete save that goes on from there.
            assert iteration in range(reached, reached + 4)
            assert iteration == (after.iteration if after else 0)
        elif before is not None:
            assert iteration == before.iteration
        else:
            # No record speaks against what is complete. So several starts may each add a save to it before the first
            # commit, where those who restore have no generation to write a record with.
            assert iteration in (reached, reached + 1)
            unrecorded = max(unrecorded, iteration)
        assert iteration >= reached
        truth.step(iteration - reached)
        reached = iteration
        assert same(other, truth) or iteration == 0
    assert reached > 10
    assert adopting or unrecorded >= 3, "saves that were complete and never committed, one behind another"


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
