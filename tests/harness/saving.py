"""A process that saves a small run again and again, for tests that trace or kill it.

python -m tests.harness.saving ROOT     saves once
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from elastic.checkpoint.layout import CommitRecord
from elastic.checkpoint.memory import MemoryTier
from elastic.checkpoint.seams import CommitVerdict
from elastic.checkpoint.storage import PosixStorage
from tests.harness.checkpoints import Bench, RecordCommitter, make_run, meta


class FileCommitter(RecordCommitter):
    """A commit record that outlives its process: one atomic replace."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def record(self) -> CommitRecord | None:
        return CommitRecord.from_plain(json.loads(self.path.read_text())) if self.path.exists() else None

    def commit(self, record: CommitRecord) -> CommitVerdict:
        PosixStorage().replace(str(self.path), json.dumps(record.to_plain()).encode())
        return self.answer


def in_child(work) -> int:
    """Run `work` in a forked process; its pid. It never comes back into the test."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def save_for_ever(
    bench: Bench, *, generation: int, storage=None, limit=1000, saved=lambda: None, beside: bool = False
) -> None:
    """Restore, then train and save every step; `saved` is called after each.

    `beside`: training goes on while a thread writes, from a copy in memory as an agent keeps it; the next save begins
    when the one before has ended.
    """
    if beside:
        _save_beside(bench, generation, storage, limit, saved)
        return
    run = make_run(seed=1)
    manager = bench.manager(storage=storage, save_max=2, generation=generation)
    run.steps = manager.restore(run.tracked).iteration
    for iteration in range(run.steps + 1, run.steps + limit):
        run.step()
        assert manager.save(run.tracked, meta(iteration, generation=generation)).saved
        saved()


def _save_beside(bench: Bench, generation: int, storage, limit: int, saved) -> None:
    run, ended = make_run(seed=1), 0
    manager = bench.manager(
        storage=storage, save_max=2, generation=generation, save_mode="async", save_overlap="skip", tier=MemoryTier()
    )
    run.steps = manager.restore(run.tracked).iteration
    while ended < limit:
        run.step()
        result = manager.advance(all_ready=manager.ready)
        if result is not None:
            assert result.saved
            ended += 1
            saved()
        manager.save(run.tracked, meta(run.steps, generation=generation), wait=False)


if __name__ == "__main__":
    torch.set_num_threads(1)
    root = Path(sys.argv[1])
    save_for_ever(Bench(root, committer=FileCommitter(root.parent / "record")), generation=1, limit=2)
