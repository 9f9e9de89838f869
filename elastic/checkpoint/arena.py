"""An arena: one state in shared memory, in a form that is valid whole or not at all, whenever its writer is killed.

    page 0      magic, sequence, where the images begin, length and checksum of the note; behind them the VALID word
    page 1 ...  the note: which images there are, then the manifest of the state
    images      shard files (see image.py), each beginning at a page

The VALID word is the checksum of what stands before it. It is cleared before anything else is touched and written
after everything else was; so a death at any instruction in between leaves an arena that says that it holds nothing.
Where a device copies beside the training, a thread waits for its bytes and writes what comes after them.
"""

from __future__ import annotations

import functools
import json
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from elastic.checkpoint.background import Pending, at_once, in_thread
from elastic.checkpoint.copying import Copier, PlainCopier
from elastic.checkpoint.image import PAGE_BYTES, Image, ImagePlan, facts, plan_image, read_views, views
from elastic.checkpoint.layout import load_json
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.mapping import Mapping as Memory
from elastic.checkpoint.metadata import Piece
from elastic.checkpoint.shards import Shard, storable
from elastic.errors import CheckpointDamaged
from elastic.failpoint import failpoint

_MAGIC = b"ELASTIC1"
_HEAD = struct.Struct("<8sQQQQ")
_VALID = struct.Struct("<Q")
HEAD_BYTES = _HEAD.size
_NOTE_STEP_BYTES = 1 << 16
"""The note's room is a multiple of it, so that images stay where they are when the note grows by a digit."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """A state in an arena. `images` are its bytes as they lie there: gone when the arena is written again."""

    manifest: Manifest
    sequence: int
    rank: int
    whole: bool
    """Whether it is everything that a rank needs, and not only what this one writes."""
    images: Mapping[str, memoryview]
    pieces: tuple[Piece, ...] | None = None
    """Where each tensor of its images lies in the whole one, if it is one rank's part of a state that is dealt out:
    the parts of all ranks are the state. None where it is no such part."""

    @property
    def size_bytes(self) -> int:
        """Bytes of its images."""
        return sum(len(each) for each in self.images.values())


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Which tensors an arena is laid out for, and where they go."""

    key: tuple[object, ...]
    plans: tuple[ImagePlan, ...]
    places: list[int]
    images_at: int = 0
    memory: Memory | None = None
    images: tuple[Image, ...] = ()
    targets: tuple[Tensor, ...] = ()

    @functools.cached_property
    def pieces(self) -> list[list[Any]]:
        """Of each tensor what it is a piece of, as JSON types."""
        return [[plan.name, each.name, each.whole, each.offset] for plan in self.plans for each in facts(plan)]

    def at(self, memory: Memory, images_at: int) -> _Layout:
        """The same for this memory, with everything to copy to."""
        images: list[Image] = []
        targets: list[Tensor] = []
        for plan, place in zip(self.plans, self.places, strict=False):
            image = memory.data[images_at + place : images_at + place + plan.size_bytes]
            images.append(Image(name=plan.name, data=image, tensors=facts(plan)))
            targets += views(image, plan.tensors).values()
        return replace(self, images_at=images_at, memory=memory, images=tuple(images), targets=tuple(targets))


@dataclass(frozen=True, kw_only=True)
class Written:
    """A state on its way into an arena. `images` are whole, and the arena holds them, once `sealed` has a result."""

    images: list[Image]
    sealed: Pending[None]


class Arena:
    """One of the two arenas of a worker. `path` names memory that its owner keeps, or a file."""

    def __init__(self, path: str, *, copier: Copier | None = None) -> None:
        """Open it. Raises OSError."""
        self._copier = copier or PlainCopier()
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._map: Memory | None = None
        self._lent = False
        self._layout: _Layout | None = None

    def close(self) -> None:
        """Let go of it, once or again; tensors and images that still point into it keep their part of the memory."""
        fd, self._fd = self._fd, -1  # by then the number may be another file's
        if fd >= 0:
            os.close(fd)
        self._map = self._layout = None

    @property
    def size_bytes(self) -> int:
        """What it takes up now."""
        return os.fstat(self._fd).st_size

    def read(self) -> Held | None:
        """What it holds; None where it holds nothing whole."""
        size_bytes = self.size_bytes
        if size_bytes < PAGE_BYTES:
            return None
        data = self._mapped(size_bytes).data
        head = bytes(data[: _HEAD.size])
        (valid,) = _VALID.unpack_from(data, _HEAD.size)
        magic, sequence, images_at, note_bytes, note_crc = _HEAD.unpack(head)
        if magic != _MAGIC or valid != _word(head) or PAGE_BYTES + note_bytes > size_bytes:
            return None
        note = bytes(data[PAGE_BYTES : PAGE_BYTES + note_bytes])
        return _held(note, data[images_at:], sequence) if zlib.crc32(note) == note_crc else None

    def copy_out(self) -> tuple[bytes, memoryview] | None:
        """Its head and what follows its first page, for an arena elsewhere; None where it holds nothing whole."""
        if self.read() is None:
            return None
        data = self._mapped(self.size_bytes).data
        return bytes(data[: _HEAD.size]), data[PAGE_BYTES:]

    def copy_in(self, size_bytes: int, *, grow: Callable[[int], None]) -> memoryview:
        """The place for what `copy_out` gave elsewhere. It holds nothing until `seal`. `grow`: as for `write`."""
        grown = self._resize(PAGE_BYTES + size_bytes, grow)
        self._clear()
        memory = self._mapped(self.size_bytes)
        memory.populate(fresh=grown)
        return memory.data[PAGE_BYTES : PAGE_BYTES + size_bytes]

    def seal(self, head: bytes) -> None:
        """What follows on the first page is what this head tells of."""
        data = self._mapped(self.size_bytes).data
        data[: _HEAD.size] = head
        failpoint("memory.3")
        _VALID.pack_into(data, _HEAD.size, _word(head))

    def forget(self) -> None:
        """Hold nothing any more."""
        self._clear()

    def write(
        self, manifest: Manifest, shards: Sequence[Shard], *, sequence: int, rank: int, whole: bool, part: bool = False,
        grow: Callable[[int], None] = lambda more_bytes: None,
    ) -> Written:  # fmt: skip
        """Copy a state into it; its images are to be written to disk from where they lie. One at a time.

        `part`: whether with what all other ranks write it is the whole state.
        `grow` is told how many bytes more this takes, and raises where they are not there: nothing was changed then.

        Raises:
            CheckpointError: a tensor that the format cannot hold; nothing was changed then, too.
        """
        layout = self._lay_out(shards)
        note = _note(manifest, layout, rank=rank, whole=whole, part=part)
        images_at = PAGE_BYTES + -(-len(note) // _NOTE_STEP_BYTES) * _NOTE_STEP_BYTES
        grown = self._resize(images_at + layout.places[-1], grow)
        memory = self._mapped(self.size_bytes)
        self._clear()
        memory.populate(fresh=grown)
        failpoint("memory.1")
        if layout.images_at != images_at or layout.memory is not memory:
            layout = self._layout = layout.at(memory, images_at)
        for image, plan in zip(layout.images, layout.plans, strict=True):
            image.data[: len(plan.header)] = plan.header  # type: ignore[index]
        if not self._lent:
            self._lent = True
            self._copier.lend(memory.data)
        copying = self._copier.begin(layout.targets, list(_sources(layout.plans, shards)))

        def finish() -> None:
            if copying is not None:
                copying.wait()
            failpoint("memory.2")
            memory.data[PAGE_BYTES : PAGE_BYTES + len(note)] = note
            self.seal(_HEAD.pack(_MAGIC, sequence, images_at, len(note), zlib.crc32(note)))

        sealed = (at_once if copying is None else in_thread)(finish)
        return Written(images=list(layout.images), sealed=sealed)

    def _lay_out(self, shards: Sequence[Shard]) -> _Layout:
        """Where everything lies; from one copy to the next that seldom changes."""
        key = tuple(
            (shard.name, name, tensor.dtype, tensor.shape) for shard in shards for name, tensor in shard.tensors.items()
        )
        if self._layout is None or self._layout.key != key:
            plans = tuple(plan_image(shard) for shard in shards)
            self._layout = _Layout(key=key, plans=plans, places=_places(plans))
        return self._layout

    def _resize(self, wanted_bytes: int, grow: Callable[[int], None]) -> bool:
        """Whether it had to grow."""
        if (more_bytes := wanted_bytes - self.size_bytes) <= 0:
            return False
        grow(more_bytes)
        os.ftruncate(self._fd, wanted_bytes)
        return True

    def _clear(self) -> None:
        if self._map is not None:
            _VALID.pack_into(self._map.data, _HEAD.size, 0)

    def _mapped(self, size_bytes: int) -> Memory:
        if self._map is None or self._map.size_bytes != size_bytes:
            self._map, self._lent = Memory(self._fd, size_bytes), False
        return self._map


def tensors_of(name: str, image: memoryview) -> dict[str, Tensor]:
    """The tensors of an image in an arena, as views of it.

    Raises:
        CheckpointDamaged: it is none.
    """
    try:
        return read_views(image, file_name=name)
    except ValueError as error:
        raise CheckpointDamaged(f"in memory: {error}") from error


def _sources(plans: Sequence[ImagePlan], shards: Sequence[Shard]) -> Iterator[Tensor]:
    for plan, shard in zip(plans, shards, strict=True):
        for entry in plan.tensors:
            yield storable(entry.name, shard.tensors[entry.name])


def _places(plans: Sequence[ImagePlan]) -> list[int]:
    """Where each image begins, counted from the first; as the last, where they end."""
    at = [0]
    for plan in plans:
        at.append(at[-1] + _pages(plan.size_bytes))
    return at


def _pages(size_bytes: int) -> int:
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def _note(manifest: Manifest, layout: _Layout, *, rank: int, whole: bool, part: bool) -> bytes:
    images = [[plan.name, at, plan.size_bytes] for plan, at in zip(layout.plans, layout.places, strict=False)]
    plain = {"images": images, "rank": rank, "whole": whole, "pieces": layout.pieces if part else None}
    about = json.dumps(plain).encode()
    return about + b"\n" + manifest.to_bytes()


def _held(note: bytes, images: memoryview, sequence: int) -> Held | None:
    about, _, manifest = note.partition(b"\n")
    try:
        plain = load_json(about, what="an arena's note")
        return Held(
            manifest=Manifest.from_bytes(manifest),
            sequence=sequence,
            rank=plain["rank"],
            whole=plain["whole"],
            images={name: images[at : at + size_bytes] for name, at, size_bytes in plain["images"]},
            pieces=None if plain["pieces"] is None else pieces_from(plain["pieces"]),
        )
    except (ValueError, KeyError, TypeError):
        return None  # of another version of ours: it holds nothing that can be used


def pieces_from(plain: Sequence[Sequence[Any]]) -> tuple[Piece, ...]:
    """Read back pieces that were told as JSON: file, tensor, shape of the whole, place in it."""
    return tuple(
        Piece(name=name, global_shape=tuple(whole), offset=tuple(offset), file_name=file_name)
        for file_name, name, whole, offset in plain
    )


def _word(head: bytes) -> int:
    """Never 0, which says that nothing is valid."""
    return zlib.crc32(head) | 1 << 32
