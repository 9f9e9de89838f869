"""A job whose data is of any kind (job.options.kind): for tests that lose no sample with real processes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from elastic.data.mixed import MixedDataset
from elastic.data.stream import ShardStream
from elastic.job import Job
from tests.harness.small_job import CLASSES, FEATURES, build_model, loss

if TYPE_CHECKING:
    from elastic.config.model import Settings

LENGTHS = {"map": (211,), "mixed": (97, 13, 150)}
"""So short that every run sees many epochs end, inside of steps and of micro-batches."""


class Noisy:
    """Rows that are told apart by their number, with noise from torch's and Python's generators."""

    def __init__(self, length: int, *, shift: int = 0) -> None:
        self.length = length
        self.shift = shift

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return row(index + self.shift)


def row(number: int) -> tuple[torch.Tensor, int]:
    """A row with its label, and noise on top."""
    x = torch.randn(FEATURES, generator=torch.Generator().manual_seed(number))
    label = int(x[:CLASSES].argmax())
    return x + 0.1 * torch.randn(FEATURES) * random.random(), label


class Shard:
    """A shard that can be put back to where it was, or (odd ones) only read again."""

    def __init__(self, shard: int, epoch: int) -> None:
        self.shard, self.epoch, self.at = shard, epoch, 0

    def __iter__(self) -> Shard:
        return self

    def __next__(self) -> tuple[torch.Tensor, int]:
        if self.at >= 5 + self.shard % 7:
            raise StopIteration
        self.at += 1
        return row(self.shard * 100 + self.at)

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def open_shard(shard: int, epoch: int) -> Shard | Iterator[Any]:
    whole = Shard(shard, epoch)
    return whole if shard % 2 == 0 else (item for item in whole)


def build_dataset(kind: str) -> Any:
    if kind == "stream":
        return ShardStream(open_shard, shards=13)
    parts = [Noisy(length, shift=1000 * part) for part, length in enumerate(LENGTHS[kind])]
    return parts[0] if len(parts) == 1 else MixedDataset(parts, weights=[5, 1, 3])


def job(settings: Settings) -> Job:
    return Job(
        model=build_model,
        dataset=lambda: build_dataset(str(settings.job.options["kind"])),
        loss=loss,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-4),
        max_grad_norm=1.0,
    )
