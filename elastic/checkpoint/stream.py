"""The bytes of whole tensors, one after another, whether they lie in one file or in pieces. Without torch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from elastic.checkpoint.header import DTYPE_BITS, TensorEntry
from elastic.checkpoint.layout import MAX_JSON_BYTES, METADATA
from elastic.checkpoint.metadata import Piece, parse_metadata
from elastic.checkpoint.storage import Storage
from elastic.checkpoint.survey import read_small

_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A whole tensor and its pieces, (path, entry) each, in their order along `axis`; one piece as a rule."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    axis: int
    pieces: tuple[tuple[str, TensorEntry], ...]

    @property
    def size_bytes(self) -> int:
        """Of the whole."""
        return prod(self.shape) * DTYPE_BITS[self.dtype] // 8


def read_pieces(directory: str, *, storage: Storage) -> dict[tuple[str, str], Piece]:
    """(file, tensor) -> what the directory's metadata.json, if there is one, says of it.

    Raises:
        ValueError, OSError: it cannot be read.
    """
    path = os.path.join(directory, METADATA)
    if storage.size_bytes(path) is None:
        return {}
    data = read_small(path, storage=storage, limit_bytes=MAX_JSON_BYTES)
    return {(piece.file_name, piece.name): piece for piece in parse_metadata(data)}


def stored(
    directory: str, entries: Iterable[tuple[str, TensorEntry]], pieces: Mapping[tuple[str, str], Piece]
) -> dict[str, Stored]:
    """Tensors by name from the (file, entry) pairs of a directory.

    Raises:
        ValueError: pieces that do not make a whole, or that are cut along several axes.
    """
    found: dict[str, list[tuple[str, TensorEntry]]] = {}
    for file_name, entry in entries:
        found.setdefault(entry.name, []).append((file_name, entry))
    return {name: _one(directory, name, each, pieces) for name, each in found.items()}


def _one(
    directory: str, name: str, found: list[tuple[str, TensorEntry]], pieces: Mapping[tuple[str, str], Piece]
) -> Stored:
    entries = [(os.path.join(directory, file_name), entry) for file_name, entry in found]
    places = [pieces.get((file_name, name)) for file_name, _ in found]
    shape = places[0].global_shape if places[0] is not None else found[0][1].shape
    dtype = found[0][1].dtype
    if len(found) == 1 and shape == found[0][1].shape:
        return Stored(name=name, dtype=dtype, shape=shape, axis=0, pieces=tuple(entries))
    known = [place for place in places if place is not None]
    starts = {place.offset for place in known}
    axes = [axis for axis in range(len(shape)) if len({start[axis] for start in starts}) > 1]
    if len(known) < len(found) or len(axes) != 1:
        raise ValueError(f"{name} lies in {len(found)} files, and {METADATA} does not say how they make one tensor")
    axis = axes[0]
    ordered = sorted(zip((place.offset[axis] for place in known), entries, strict=True), key=lambda each: each[0])
    at = 0
    for start, (_, entry) in ordered:
        fits = entry.dtype == dtype and start == at and len(entry.shape) == len(shape)
        if not fits or entry.shape[:axis] + entry.shape[axis + 1 :] != shape[:axis] + shape[axis + 1 :]:
            raise ValueError(f"{name}: the piece at {start} of axis {axis} does not follow on the one before it")
        at += entry.shape[axis]
    if at != shape[axis]:
        raise ValueError(f"{name}: its pieces reach up to {at} of {shape[axis]} on axis {axis}")
    return Stored(name=name, dtype=dtype, shape=shape, axis=axis, pieces=tuple(each for _, each in ordered))


def read_whole(tensor: Stored, *, storage: Storage) -> Iterator[bytes]:
    """The tensor's bytes in order, at most a few MiB at a time.

    Raises:
        OSError: a file cannot be read or is too short.
    """
    runs = prod(tensor.shape[: tensor.axis]) if len(tensor.pieces) > 1 else 1
    for run in range(runs):
        for path, entry in tensor.pieces:
            each = (entry.end - entry.begin) // runs
            yield from _read(path, entry.begin + run * each, each, storage)


def _read(path: str, begin: int, size_bytes: int, storage: Storage) -> Iterator[bytes]:
    for start in range(begin, begin + size_bytes, _CHUNK_BYTES):
        stop = min(start + _CHUNK_BYTES, begin + size_bytes)
        chunk = storage.read_part(path, start, stop)
        if len(chunk) != stop - start:
            raise OSError(f"{path} ended while it was read")
        yield chunk
