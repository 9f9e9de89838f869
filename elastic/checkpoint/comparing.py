"""Two iterations side by side, without torch: what they say of themselves and, on request, their tensors' bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from elastic.checkpoint.inspection import show, tensor_entries
from elastic.checkpoint.layout import MANIFEST, MAX_JSON_BYTES
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.storage import Storage
from elastic.checkpoint.stream import Stored, read_pieces, read_whole, stored
from elastic.checkpoint.survey import read_small
from elastic.errors import CheckpointDamaged


@dataclass(frozen=True, kw_only=True)
class Change:
    """One thing that differs; None where one side has no such thing."""

    what: str
    one: Any
    other: Any


def compare(one: str, other: str, *, contents: bool, storage: Storage) -> tuple[Change, ...]:
    """What differs between two iterations' directories. `contents`: read all tensors of both, too.

    Raises:
        CheckpointDamaged: one of them cannot be read.
    """
    a, b = show(one, storage=storage), show(other, storage=storage)
    changes = list(_changes("", a.facts, b.facts))
    changes += _changes("settings.", _settings(one, storage), _settings(other, storage))
    changes += _changes("object ", a.objects, b.objects)
    changes += _changes("tie ", a.ties, b.ties)
    changes += _changes(
        "tensor ",
        {each.name: f"{each.dtype} {list(each.shape)}" for each in a.tensors},
        {each.name: f"{each.dtype} {list(each.shape)}" for each in b.tensors},
    )
    if contents:
        changes += _contents(one, other, storage)
    return tuple(changes)


def _changes(prefix: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[Change]:
    for name in sorted(one.keys() | other.keys()):
        if one.get(name) != other.get(name):
            yield Change(what=prefix + name, one=one.get(name), other=other.get(name))


def _settings(directory: str, storage: Storage) -> dict[str, Any]:
    path = os.path.join(directory, MANIFEST)
    if storage.size_bytes(path) is None:
        return {}
    manifest = Manifest.from_bytes(read_small(path, storage=storage, limit_bytes=MAX_JSON_BYTES))
    return dict(_flat(manifest.settings, ""))


def _flat(plain: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in plain.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _contents(one: str, other: str, storage: Storage) -> Iterator[Change]:
    """Tensors of the same type and shape whose bytes differ, and from where on."""
    a, b = _stored(one, storage), _stored(other, storage)
    for name in sorted(a.keys() & b.keys()):
        left, right = a[name], b[name]
        if (left.dtype, left.shape) == (right.dtype, right.shape):
            try:
                at = _first_difference(left, right, storage=storage)
            except OSError as error:
                raise CheckpointDamaged(f"{name} cannot be read: {error}") from error
            if at is not None:
                told = f"differ from byte {at} of {left.size_bytes}"
                yield Change(what=f"contents of {name}", one="", other=told)


def _stored(directory: str, storage: Storage) -> dict[str, Stored]:
    try:
        pieces = read_pieces(directory, storage=storage)
        return stored(directory, tensor_entries(directory, storage=storage), pieces)
    except (OSError, ValueError) as error:
        raise CheckpointDamaged(f"{directory}: {error}") from error


def _first_difference(one: Stored, other: Stored, *, storage: Storage) -> int | None:
    """The first byte that differs. The two may lie in different pieces, so that chunks need not match."""
    at = 0
    first, second = read_whole(one, storage=storage), read_whole(other, storage=storage)
    a = b = memoryview(b"")
    while at < one.size_bytes:
        a = a or memoryview(next(first))
        b = b or memoryview(next(second))
        size = min(len(a), len(b))
        if a[:size] != b[:size]:
            return at + next(n for n in range(size) if a[n] != b[n])
        a, b, at = a[size:], b[size:], at + size
    return None
