"""Fetch: items by their keys, each under randomness of its own, so that augmentation follows the sample.

A sample's random draws depend on the run's seed and the sample's number only: the same at any world size, in any
loader process and after any resume. The caller's generators are not what they were behind it: a step seeds them anew
for each micro-batch, others fetch inside of `own_randomness`, which costs as much as fetching a few small items.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from torch.utils.data import default_collate

from elastic.data.sampler import Key
from elastic.errors import DataError
from elastic.plan.mix import mix_pair

Collate = Callable[[list[Any]], Any]
Fetched = tuple[tuple[int, ...], tuple[int, ...], Any, str]
"""(global sample numbers, indices, batch, state to go on from or ""): a plain tuple, which pinning walks through."""

_COLLATE_STREAM = 1  # told from the items' own stream by this number


class MapDataset(Protocol):
    """What a data set must have: items by index, and their number."""

    def __getitem__(self, index: int, /) -> Any: ...

    def __len__(self) -> int: ...


class Fetcher(Protocol):
    """What a loader asks for whole micro-batches, in this process or in another one."""

    def __getitems__(self, keys: Sequence[Key]) -> Fetched: ...


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
        items = [self._item(sample, index) for sample, index in keys]
        batch = put_together(items, collate=self._collate, seed=self._seed, first=keys[0][0])
        return tuple(sample for sample, _ in keys), tuple(index for _, index in keys), batch, ""

    def _item(self, sample: int, index: int) -> Any:
        reseed(mix_pair(self._seed, sample))
        return item_of(self._dataset, index, what=f"global sample {sample}")


def item_of(dataset: MapDataset, index: int, *, what: str) -> Any:
    """An item, with the place added to whatever goes wrong.

    Raises:
        DataError: the data set has no such item, though its length says that it has.
    """
    try:
        return dataset[index]
    except IndexError as error:
        if index < len(dataset):
            _lies(dataset, index, error)
        raise DataError(
            f"the run's order names item {index} ({what}), the data set holds {len(dataset)}: it became shorter while "
            "the run was using it; bring the items back"
        ) from error
    except Exception as error:  # any exception: it is the user's and goes on, with the place added
        error.add_note(f"while fetching item {index} of the data set ({what})")
        raise


def _lies(dataset: MapDataset, index: int, error: IndexError) -> NoReturn:
    raise DataError(
        f"the data set says that it holds {len(dataset)} items, but item {index} raised {error!r}: "
        "let __len__ give the number of items that __getitem__ can give"
    ) from error


def put_together(items: list[Any], *, collate: Collate, seed: int, first: int) -> Any:
    """A batch of a micro-batch's items; what the collate function draws belongs to the first sample's number."""
    reseed(mix_pair(mix_pair(seed, first), _COLLATE_STREAM))
    return collate(items)


def reseed(seed: int) -> None:
    """Seed the three generators that items use. The CPU's only: the device's belongs to the model."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)


@dataclass(frozen=True, kw_only=True)
class Generators:
    """Where Python's, torch's and numpy's generators stood; not a GPU's."""

    python: tuple[Any, ...]
    tensor: torch.Tensor
    """torch's."""
    numpy: Any

    @classmethod
    def now(cls) -> Generators:
        """Where they stand."""
        return cls(python=random.getstate(), tensor=torch.default_generator.get_state(), numpy=np.random.get_state())

    def put_back(self) -> None:
        """Let them stand there again."""
        random.setstate(self.python)
        torch.default_generator.set_state(self.tensor)
        np.random.set_state(self.numpy)


@contextmanager
def own_randomness() -> Iterator[None]:
    """What is drawn inside leaves the caller's generators as they were."""
    generators = Generators.now()
    try:
        yield
    finally:
        generators.put_back()
