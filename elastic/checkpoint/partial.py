"""Reading only what one rank needs of an iteration: of each file the header, and the chunks in which its parts lie.

Every byte that is used was verified: a chunk's checksum is that of the file up to its end, and starts from the one of
the chunk before, so that a chunk can be checked alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import Tensor

from elastic.checkpoint.arrivals import Count, nowhere
from elastic.checkpoint.checksums import crc32, fault_of
from elastic.checkpoint.cuts import Cut, Window, whole
from elastic.checkpoint.header import TensorEntry, header_bytes, parse_header
from elastic.checkpoint.image import DTYPES, views
from elastic.checkpoint.layout import METADATA
from elastic.checkpoint.manifest import FileFacts
from elastic.checkpoint.metadata import Piece, parse_metadata
from elastic.checkpoint.pieces import Part, fill
from elastic.checkpoint.shards import decode_shard
from elastic.checkpoint.storage import Storage
from elastic.errors import CheckpointDamaged


class VerifiedFile:
    """A file of which any part can be read and is checked against what was written."""

    def __init__(
        self, directory: str, name: str, facts: FileFacts, *, storage: Storage, count: Count = nowhere
    ) -> None:
        self._path = os.path.join(directory, name)
        self._name = name
        self._facts = facts
        self._storage = storage
        self._count = count
        self._all: bytes | None = None
        self._size_bytes: int | None = None  # asked once: on a store behind a network each asking is a request

    def read(self, begin: int, end: int) -> bytes:
        """The bytes from `begin` up to `end`.

        Raises:
            CheckpointDamaged: they cannot be read, or they or the file's length are not what was written.
        """
        if not self._facts.chunks:  # format 1 has a checksum for the whole file only
            return self._whole()[begin:end]
        start, before = 0, 0
        chunks: list[tuple[int, int, int, int]] = []  # first byte, one past the last, checksums before and after
        for stop, after in self._facts.chunks:
            if start < end and stop > begin:
                chunks.append((start, stop, before, after))
            start, before = stop, after
        if not chunks:
            return b""
        first = chunks[0][0]
        data = self._bytes(first, chunks[-1][1])
        view = memoryview(data)
        for at, stop, known, after in chunks:
            if crc32(view[at - first : stop - first], known) != after:
                raise CheckpointDamaged(
                    f"{self._name} is not what was written: its checksum does not match in bytes {at} to {stop - 1}"
                )
        return data[begin - first : end - first]

    def entries(self) -> tuple[TensorEntry, ...]:
        """What its header says, if it is a safetensors file.

        Raises:
            CheckpointDamaged: it is not.
        """
        size_bytes = self._facts.size_bytes
        try:
            start = self.read(
                0, min(size_bytes, max(8, self._facts.chunks[0][0]) if self._facts.chunks else size_bytes)
            )
            end = 8 + header_bytes(start[:8], size_bytes=size_bytes, what=self._name)
            text = start[8:end] if end <= len(start) else self.read(8, end)
            return parse_header(text, size_bytes=size_bytes, what=self._name)
        except ValueError as error:
            raise CheckpointDamaged(str(error)) from error

    def _bytes(self, begin: int, end: int) -> bytes:
        try:
            data = self._storage.read_part(self._path, begin, end)
            self._size_bytes = self._size_bytes or self._storage.size_bytes(self._path)
        except (OSError, MemoryError) as error:
            raise CheckpointDamaged(f"{self._name} cannot be read: {error}") from error
        if self._size_bytes != self._facts.size_bytes or len(data) != end - begin:
            raise CheckpointDamaged(f"{self._name} has {self._size_bytes} bytes, expected {self._facts.size_bytes}")
        self._count(len(data))
        return data

    def _whole(self) -> bytes:
        if self._all is None:
            data = self._bytes(0, self._facts.size_bytes)
            if (fault := fault_of(data, self._facts, name=self._name)) is not None:
                raise CheckpointDamaged(fault)
            self._all = data
        return self._all


@dataclass(kw_only=True)
class _Gathering:
    """A tensor while its parts are being found."""

    window: Window
    cut: Cut | None
    parts: list[Part] = field(default_factory=list)


class PartFile(Protocol):
    """What holds pieces of tensors, and gives any of its bytes."""

    def entries(self) -> Sequence[TensorEntry]: ...

    def read(self, begin: int, end: int) -> bytes | memoryview: ...


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is wanted of one tensor of a file: the bytes from `begin` up to `end`, which are rows of its piece."""

    entry: TensorEntry
    shape: tuple[int, ...]
    begin: int
    end: int
    box: Window
    part: Window


def pieces_in(metadata: bytes) -> tuple[Piece, ...]:
    """What the text of metadata.json says. Raises CheckpointDamaged."""
    try:
        return parse_metadata(metadata)
    except ValueError as error:
        raise CheckpointDamaged(str(error)) from error


class PartReader:
    """Takes from file after file what lies in the windows that are wanted, and puts it together at the end."""

    def __init__(self, pieces: Iterable[Piece], cuts: Mapping[str, Cut]) -> None:
        """`pieces`: of all files. `cuts`: of which tensors only a part is wanted."""
        self._pieces = {(piece.file_name, piece.name): piece for piece in pieces}
        self._cuts = cuts
        self._found: dict[str, _Gathering] = {}

    def wanted(self, file_name: str, entries: Sequence[TensorEntry], *, skip: tuple[str, ...] = ()) -> list[Wanted]:
        """What of a file lies in the windows; tensors whose names begin with one of `skip` are not wanted.

        Raises:
            CheckpointDamaged: the file holds what no piece tells of.
        """
        found = []
        for entry in entries:
            if entry.name.startswith(skip) and skip:
                continue
            box, part = self._window(file_name, entry)
            gathering = self._found[entry.name]
            if part.empty and (gathering.parts or not gathering.window.empty):
                continue
            shape, begin, end = _rows(entry, box, part)
            held = Window(offset=_moved(box, part, shape), size=shape)
            found.append(Wanted(entry=entry, shape=shape, begin=begin, end=end, box=held, part=part))
        return found

    def take(self, file_name: str, file: PartFile, *, skip: tuple[str, ...] = ()) -> None:
        """Read what is wanted of one file. Raises CheckpointDamaged."""
        wanted = {each.entry.name: each for each in self.wanted(file_name, file.entries(), skip=skip)}
        tensors: dict[str, Tensor] = {}
        others: list[tuple[Wanted, bytes | memoryview]] = []
        for each in wanted.values():
            data = file.read(each.begin, each.end)
            if isinstance(data, memoryview) and not data.readonly and each.entry.dtype in DTYPES:
                rows = replace(each.entry, shape=each.shape, begin=0, end=len(data))
                tensors |= views(data, (rows,))
            else:
                others.append((each, data))
        if others:
            tensors |= decode_shard(_image(others), file_name=file_name)
        for name, tensor in tensors.items():
            box, part = wanted[name].box, wanted[name].part
            self._found[name].parts.append(Part(offset=part.offset, tensor=tensor[part.slices(box.offset)]))

    def finish(self, *, copy: bool = False) -> dict[str, tuple[Tensor, Cut | None]]:
        """Every tensor met, whole or as the part that was wanted, with its cut in that case.

        `copy`: whether none may lie where a file's bytes do.

        Raises:
            CheckpointDamaged: pieces are missing or do not fit.
        """
        found = {}
        for name, each in self._found.items():
            filled = fill(name, each.window, each.parts)
            found[name] = filled.clone() if copy and len(each.parts) == 1 else filled, each.cut
        return found

    def _window(self, file_name: str, entry: TensorEntry) -> tuple[Window, Window]:
        """Where a piece lies, and what of it is wanted."""
        piece = self._pieces.get((file_name, entry.name))
        if piece is None or len(piece.global_shape) != len(entry.shape):
            raise CheckpointDamaged(f"{file_name} holds {entry.name}, of which {METADATA} says nothing that fits")
        if entry.name not in self._found:
            self._found[entry.name] = _gathering(piece, self._cuts.get(entry.name))
        box = Window(offset=piece.offset, size=entry.shape)
        return box, box.meet(self._found[entry.name].window)


def _gathering(piece: Piece, cut: Cut | None) -> _Gathering:
    """A tensor of another shape is read whole: whoever compares it then tells both shapes."""
    if cut is not None and cut.shape == piece.global_shape:
        return _Gathering(window=cut.window, cut=cut)
    return _Gathering(window=whole(piece.global_shape), cut=None)


def _rows(entry: TensorEntry, box: Window, part: Window) -> tuple[tuple[int, ...], int, int]:
    """Shape and bytes (begin, end) of the rows of a piece in which a part of it lies."""
    if not entry.shape or (entry.end - entry.begin) % max(1, entry.shape[0]):
        return entry.shape, entry.begin, entry.end
    if part.empty:
        return part.size, entry.begin, entry.begin
    row_bytes = (entry.end - entry.begin) // entry.shape[0]
    first = part.offset[0] - box.offset[0]
    shape = (part.size[0], *entry.shape[1:])
    return shape, entry.begin + first * row_bytes, entry.begin + (first + part.size[0]) * row_bytes


def _moved(box: Window, part: Window, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Where the rows that were read begin in the whole tensor."""
    if part.empty or shape == box.size:
        return part.offset if part.empty else box.offset
    return (part.offset[0], *box.offset[1:])


def _image(rows: list[tuple[Wanted, bytes | memoryview]]) -> bytes:
    """What was read as a small file of its own, for the format's library to give every type its meaning."""
    header, at = {}, 0
    for each, data in rows:
        place = [at, at + len(data)]
        header[each.entry.name] = {"dtype": each.entry.dtype, "shape": list(each.shape), "data_offsets": place}
        at += len(data)
    text = json.dumps(header).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *(data for _, data in rows)])
