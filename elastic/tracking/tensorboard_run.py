"""TensorBoard: event files in one directory. After a restart, points beyond the restored sample are purged by the next
file's first record, so that curves never run back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from elastic.clock import SYSTEM_CLOCK, Clock
from elastic.tracking.tracker import TrackedRun

_MOST_WAIT_S = 2.0
"""A file from a node whose clock is further ahead than this is not waited for."""


def open_run(run: TrackedRun) -> TensorBoardRun:
    """Files go to the run's directory."""
    return TensorBoardRun(run.directory)


class TensorBoardRun:
    """A new event file for each time the run goes on."""

    def __init__(self, directory: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._directory, self._clock = directory, clock
        self._writer: SummaryWriter | None = None

    def begin(self, samples: int) -> int:
        """Purge what was told of later samples."""
        self.close()
        self._let_a_second_pass()
        self._writer = SummaryWriter(self._directory, purge_step=samples + 1)
        return samples

    def _let_a_second_pass(self) -> None:
        """Files bear the second they were begun in, and are read in the order of their names: one of an earlier worker
        from the same second could come after ours, which would hide it."""
        seconds = [path.name.split(".")[3] for path in Path(self._directory).glob("events.out.tfevents.*")]
        newest_s = max((int(each) for each in seconds if each.isdecimal()), default=0)
        left_s = newest_s + 1 - self._clock.wall_s()
        if 0 < left_s <= _MOST_WAIT_S:
            self._clock.sleep(left_s)

    def log(self, values: Mapping[str, float], *, samples: int) -> None:
        """On disk when it returns: a worker may be killed at any moment."""
        assert self._writer is not None  # begin came before
        for name, value in values.items():
            self._writer.add_scalar(name, value, samples)
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
