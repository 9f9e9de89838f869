"""TensorBoard: event files in one directory. After a restart, points beyond the restored sample are purged by the next
file's first record, so that curves never run back."""

from __future__ import annotations

from collections.abc import Mapping

from torch.utils.tensorboard import SummaryWriter

from elastic.tracking.tracker import TrackedRun


def open_run(run: TrackedRun) -> TensorBoardRun:
    """Files go to the run's directory."""
    return TensorBoardRun(run.directory)


class TensorBoardRun:
    """A new event file for each time the run goes on."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._writer: SummaryWriter | None = None

    def begin(self, samples: int) -> int:
        """Purge what was told of later samples."""
        self.close()
        purge = samples + 1 if samples else None
        self._writer = SummaryWriter(self._directory, purge_step=purge)
        return samples

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
