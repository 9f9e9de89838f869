"""Fetch: items by their keys, each under randomness of its own, so that augmentation follows the sample.

A sample's random draws depend on the run's seed and the sample's number only: the same at any world size, in any
loader process and after any resume. The caller's own randomness is left as it was.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import default_collate

from elastic.data.sampler import Key
from elastic.plan.mix import mix_pair

Collate = Callable[[list[Any]], Any]
Fetched = tuple[tuple[int, ...], tuple[int, ...], Any]
"""(global sample numbers, indices, batch): a plain tuple, since that is what pinning of memory can walk through."""

_COLLATE_STREAM = 1  # told from the items' own stream by this number


class MapDataset(Protocol):
    """What a data set must have: items by index, and their number."""

    def __getitem__(self, index: int, /) -> Any: ...

    def __len__(self) -> int: ...


class NumberedDataset:
    """The user's data set, asked for a whole micro-batch by keys; it answers with what was really fetched."""

    def __init__(self, dataset: MapDataset, *, seed: int, collate: Collate | None) -> None:
        self._dataset = dataset
        self._seed = seed
        self._collate: Collate = default_collate if collate is None else collate

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, key: Key) -> Fetched:
        return self.__getitems__([key])

    def __getitems__(self, keys: Sequence[Key]) -> Fetched:
        with _own_randomness():
            items = [self._item(sample, index) for sample, index in keys]
            _reseed(mix_pair(mix_pair(self._seed, keys[0][0]), _COLLATE_STREAM))
            batch = self._collate(items)
        return tuple(sample for sample, _ in keys), tuple(index for _, index in keys), batch

    def _item(self, sample: int, index: int) -> Any:
        _reseed(mix_pair(self._seed, sample))
        try:
            return self._dataset[index]
        except Exception as error:  # any exception: it is the user's and goes on, with the place added
            error.add_note(f"while fetching item {index} of the data set (global sample {sample})")
            raise


def _reseed(seed: int) -> None:
    """Seed the three generators that items use. The CPU's only: the device's belongs to the model."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)


@contextmanager
def _own_randomness() -> Iterator[None]:
    torch_state = torch.default_generator.get_state()
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(torch_state)
        random.setstate(python_state)
        np.random.set_state(numpy_state)
