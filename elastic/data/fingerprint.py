"""Fingerprint: a few items of a data set, hashed by content, so that another data set under the same name is noticed.

The items are fetched twice under the same seed: what differs then depends on something that no seed controls, and a
run over it could be neither repeated nor shared out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from elastic.data.fetch import MapDataset, item_of, own_randomness, reseed
from elastic.data.mixed import MixedDataset
from elastic.data.stream import ShardStream
from elastic.errors import DataError
from elastic.plan.mix import mix_pair
from elastic.plan.permutation import permute

_KEY = 0x5EED  # fixed: the items looked at depend on the data set's length only


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...


def fingerprint(dataset: MapDataset | ShardStream, *, items: int, lengths: Sequence[int] | None = None) -> str:
    """Text that is equal where the content is, as far as the data set's own `fingerprint` or `items` samples tell.

    Args:
        items: how many to look at; 0: none, so that only a data set's own `fingerprint` counts.
        lengths: look at the first so many only, as if the data set held no more; of a mixture, one for each part.

    Returns:
        "" where nothing is known.

    Raises:
        DataError: an item is another one each time, under the same seed.
    """
    if isinstance(dataset, MixedDataset) and (lengths is None or len(lengths) == len(dataset.lengths)):
        parts = [
            fingerprint(part, items=items, lengths=None if length == now else (length,))
            for part, now, length in zip(dataset.parts, dataset.lengths, lengths or dataset.lengths, strict=True)
        ]
        return hashlib.sha256("/".join(parts).encode()).hexdigest() if all(parts) else ""
    own = getattr(dataset, "fingerprint", None)
    if own is not None:
        return "" if lengths is not None else str(own)
    if isinstance(dataset, ShardStream) or items == 0:
        return ""
    total = hashlib.sha256()
    with own_randomness():
        for index in _looked_at(len(dataset) if lengths is None else lengths[0], items):
            first, second = (_digest_of(dataset, index) for _ in range(2))
            if first != second:
                raise DataError(
                    f"item {index} of the data set is another one each time that it is fetched, under the same seed: "
                    "draw from torch, random or numpy.random only, and from no clock, counter or unordered set; or "
                    "set data.probe_items to 0 and do without exactness"
                )
            total.update(first)
    return total.hexdigest()


def _looked_at(length: int, items: int) -> list[int]:
    """The first, the last and some in between; each only once."""
    drawn = [0, length - 1, *(permute(place, length=length, key=_KEY) for place in range(min(items, length)))]
    return list(dict.fromkeys(drawn))[:items]


def _digest_of(dataset: MapDataset, index: int) -> bytes:
    reseed(mix_pair(_KEY, index))
    item = item_of(dataset, index, what="looked at before the start")
    digest = hashlib.sha256()
    _feed(digest, item)
    return digest.digest()


def _feed(digest: _Hash, value: Any) -> None:
    """Hash a value by content. Of a type that is not known only the type counts."""
    digest.update(type(value).__name__.encode() + b"\0")
    for part in _parts(value):
        if isinstance(part, bytes):
            digest.update(len(part).to_bytes(8, "little") + part)
        else:
            _feed(digest, part)


def _parts(value: Any) -> Iterator[Any]:
    match value:
        case torch.Tensor():
            yield str((value.dtype, tuple(value.shape))).encode()
            yield value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        case np.ndarray() | np.generic():
            yield str((value.dtype, value.shape)).encode()
            yield value.tobytes() if value.dtype.kind != "O" else b""
        case bytes() | bytearray():
            yield bytes(value)
        case str() | int() | float() | complex() | None:
            yield repr(value).encode()
        case Mapping():
            for key, item in value.items():
                yield repr(key).encode()
                yield item
        case list() | tuple():
            yield from value
