"""The small job with a worker that hangs once, in one of several ways: a file named by HANG_FILE says that it did."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import Dataset

from elastic.job import Job
from tests.harness import small_job

if TYPE_CHECKING:
    from elastic.config.model import Settings

_PASSES = 60
"""So many micro-batches go well before."""


class Fuse:
    """Burns down with each use; at its end, on the node named by HANG_NODE, once in the life of the job."""

    def __init__(self) -> None:
        self.left = _PASSES

    def burnt(self) -> bool:
        self.left -= 1
        place = Path(os.environ["HANG_FILE"])
        if self.left > 0 or os.environ["ELASTIC_NODE"] != os.environ["HANG_NODE"] or place.exists():
            return False
        place.touch()
        return True


def holds_the_lock(settings: Settings) -> Job:
    """A call into C that does not let go of the interpreter's lock."""
    fuse = Fuse()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        if fuse.burnt():
            while ctypes.PyDLL(None).sleep(3600):
                pass  # a signal cuts it short
        return small_job.loss(model, batch)

    return dataclasses.replace(small_job.job(settings), loss=loss)


def holds_the_lock_for_a_while(settings: Settings) -> Job:
    """The same for 20 s; then it goes on as if nothing had been."""
    fuse = Fuse()

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        left_s = 20 if fuse.burnt() else 0
        while left_s:
            left_s = ctypes.PyDLL(None).sleep(left_s)
        return small_job.loss(model, batch)

    return dataclasses.replace(small_job.job(settings), loss=loss)


class StuckDataset(Dataset[Any]):
    """Data that stops to come."""

    def __init__(self) -> None:
        self._data: Any = small_job.build_dataset()
        self._fuse = Fuse()

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        if self._fuse.burnt():
            threading.Event().wait()
        return self._data[index]


def stuck_data(settings: Settings) -> Job:
    return dataclasses.replace(small_job.job(settings), dataset=StuckDataset)
