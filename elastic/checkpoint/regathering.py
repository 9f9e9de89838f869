"""Regathering: each rank gets its rows of a state whose parts lie in the memory of several nodes.

Parts on its own node are read where they lie. Of those that it lacks a rank is told by somebody who has them what is
in them, asks for the bytes of its rows, and gets these: three rounds, in which all ranks take part at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elastic.checkpoint.arena import Held, pieces_from
from elastic.checkpoint.arrivals import MEMORY, Arrivals, Count
from elastic.checkpoint.header import TensorEntry, header_bytes, parse_header
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.metadata import Piece
from elastic.checkpoint.partial import PartFile, PartReader
from elastic.checkpoint.reading import gather_parts, others_own
from elastic.checkpoint.seams import Group
from elastic.checkpoint.state import Captured, wanted_cuts
from elastic.checkpoint.swapping import Bytes, swap
from elastic.errors import CheckpointDamaged

_ALIGN_BYTES = 16

Span = tuple[int, int]
Requests = dict[str, dict[str, list[Span]]]
"""By part (JSON knows no numbers as names) and file: the bytes that are asked for, as (begin, end)."""


@dataclass(frozen=True, kw_only=True)
class _Catalogue:
    """What is in a part."""

    pieces: tuple[Piece, ...]
    entries: Mapping[str, tuple[TensorEntry, ...]]
    """By file."""


class _HeldFile:
    """A file of a part that lies in this node's memory."""

    def __init__(self, image: memoryview, entries: Sequence[TensorEntry], count: Count) -> None:
        self._image, self._entries, self._count = image, entries, count

    def entries(self) -> Sequence[TensorEntry]:
        return self._entries

    def read(self, begin: int, end: int) -> memoryview:
        self._count(end - begin)
        return self._image[begin:end]


class _CameFile:
    """A file of which the bytes that were asked for have come from another node."""

    def __init__(self, entries: Sequence[TensorEntry], came: Mapping[Span, memoryview]) -> None:
        self._entries, self._came = entries, came

    def entries(self) -> Sequence[TensorEntry]:
        return self._entries

    def read(self, begin: int, end: int) -> Bytes:
        return b"" if begin == end else self._came[begin, end]


class Regathering:
    """One meeting. Every rank makes one and calls `meet`, then `read`."""

    def __init__(
        self, holders: Sequence[Sequence[int]], parts: Mapping[int, Held], *, tracked: Mapping[str, Any], group: Group,
        arrivals: Arrivals,
    ) -> None:  # fmt: skip
        """`holders`: of each part, the ranks that have it. `parts`: those that this rank can read where they lie."""
        self._holders, self._parts, self._tracked, self._group = holders, parts, tracked, group
        self._arrivals = arrivals
        self._manifest: Manifest | None = None
        self._catalogues: dict[int, _Catalogue] = {}
        self._requests: dict[int, Requests] = {}
        self._came: dict[int, memoryview] = {}
        self._fault: Exception | None = None

    def meet(self) -> None:
        """The three rounds. What goes wrong on this rank alone is raised by `read`, since the others wait for it.

        Raises:
            PeerLost: from the group.
        """
        ranks = range(self._group.size)
        self._look()
        told = swap([[self._telling(rank)] for rank in ranks], group=self._group)
        try:
            self._plan(told)
        except Exception as error:  # noqa: BLE001 - because the others wait for this rank in the next round
            self._fault, self._requests = self._fault or error, {}
        asked = swap([[json.dumps(self._requests.get(rank, {})).encode()] for rank in ranks], group=self._group)
        came = swap([self._answer(each) for each in asked], group=self._group, arrivals=self._arrivals)
        self._came = dict(enumerate(came))

    def read(self) -> tuple[Captured, Manifest]:
        """What this rank needs of the state.

        Raises:
            CheckpointDamaged: the parts are not what was told of them.
        """
        try:
            if self._fault is not None:
                raise self._fault
            assert self._manifest is not None  # _plan found it
            count = self._arrivals.begin(MEMORY)
            files = dict(self._files(count))
            cuts = wanted_cuts(self._manifest.values, self._tracked)
            pieces = (piece for each in self._catalogues.values() for piece in each.pieces)
            rank = self._group.rank
            # Copied, since arenas will be written again, by ranks that are done earlier than this one.
            captured = gather_parts(self._manifest, files, pieces=pieces, cuts=cuts, rank=rank, copy=True)
            count(0)
            return captured, self._manifest
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointDamaged(f"in memory: parts do not fit, {type(error).__name__}: {error}") from error

    def _look(self) -> None:
        for part, held in self._parts.items():
            try:
                self._catalogues[part] = _catalogue(held)
            except ValueError as error:
                self._fault = error

    def _server(self, part: int, rank: int) -> int | None:
        """Who serves a rank with a part; None where it has it. The work is shared out."""
        holders = self._holders[part]
        return None if rank in holders else holders[rank % len(holders)]

    def _served(self, rank: int) -> Iterator[int]:
        return (part for part in range(len(self._holders)) if self._server(part, rank) == self._group.rank)

    def _telling(self, rank: int) -> bytes:
        """What a rank must know of the parts that it gets from here."""
        told: dict[str, Any] = {}
        for part in self._served(rank):
            if (held := self._parts.get(part)) is None or part not in self._catalogues:
                continue  # who needs it finds out
            found = self._catalogues[part]
            told[str(part)] = {
                "manifest": held.manifest.to_bytes().decode() if part == 0 else None,
                "pieces": [[each.file_name, each.name, each.global_shape, each.offset] for each in found.pieces],
                "entries": {
                    name: [[each.name, each.dtype, each.shape, each.begin, each.end] for each in entries]
                    for name, entries in found.entries.items()
                },
            }
        return json.dumps(told).encode()

    def _plan(self, told: Sequence[memoryview]) -> None:
        """Know all parts, and what to ask for."""
        if 0 in self._parts:
            self._manifest = self._parts[0].manifest
        for message in told:
            for part, about in json.loads(bytes(message)).items():
                self._catalogues[int(part)] = _catalogue_from(about)
                if about["manifest"] is not None:
                    self._manifest = Manifest.from_bytes(about["manifest"].encode())
        if self._manifest is None or len(self._catalogues) != len(self._holders):
            raise CheckpointDamaged(
                f"in memory: of {len(self._holders)} parts only {sorted(self._catalogues)} are told of"
            )
        pieces = [piece for each in self._catalogues.values() for piece in each.pieces]
        reader = PartReader(pieces, wanted_cuts(self._manifest.values, self._tracked))
        skip = others_own(self._manifest, self._group.rank)
        for part in sorted(self._catalogues):
            if (server := self._server(part, self._group.rank)) is not None:
                found = {
                    name: [
                        (each.begin, each.end)
                        for each in reader.wanted(name, entries, skip=skip)
                        if each.begin < each.end
                    ]
                    for name, entries in self._catalogues[part].entries.items()
                }
                self._requests.setdefault(server, {})[str(part)] = found

    def _answer(self, asked: memoryview) -> list[Bytes]:
        """The bytes that a rank asked for, in its order; fewer where they are not here, which it will see."""
        found: list[Bytes] = []
        try:
            for part, files in json.loads(bytes(asked)).items():
                images = self._parts[int(part)].images
                for name, spans in files.items():
                    for begin, end in spans:
                        found += [images[name][begin:end], bytes(_gap(end - begin))]
        except (ValueError, KeyError, TypeError, AttributeError):
            return []
        return found

    def _files(self, count: Count) -> Iterator[tuple[str, PartFile]]:
        came = {part: spans for server in self._requests for part, spans in self._unpacked(server)}
        for part, catalogue in self._catalogues.items():
            for name, entries in catalogue.entries.items():
                if part in came:
                    yield name, _CameFile(entries, came[part].get(name, {}))
                else:
                    yield name, _HeldFile(self._parts[part].images[name], entries, count)

    def _unpacked(self, server: int) -> Iterator[tuple[int, dict[str, dict[Span, memoryview]]]]:
        """By part and file: what came from a rank."""
        at, data = 0, self._came[server]
        wanted_bytes = sum(
            e - b + _gap(e - b)
            for files in self._requests[server].values()
            for spans in files.values()
            for b, e in spans
        )
        if len(data) != wanted_bytes:
            raise CheckpointDamaged(
                f"rank {server} was asked for {wanted_bytes} bytes of its memory, and gave {len(data)}"
            )
        for part, files in self._requests[server].items():
            found: dict[str, dict[Span, memoryview]] = {}
            for name, spans in files.items():
                for begin, end in spans:
                    found.setdefault(name, {})[begin, end] = data[at : at + end - begin]
                    at += end - begin + _gap(end - begin)
            yield int(part), found


def _gap(size_bytes: int) -> int:
    """What follows on so many bytes, so that elements of every type lie where they can be used."""
    return -size_bytes % _ALIGN_BYTES


def _catalogue(held: Held) -> _Catalogue:
    entries = {}
    for name, image in held.images.items():
        length = header_bytes(bytes(image[:8]), size_bytes=len(image), what=name)
        entries[name] = parse_header(bytes(image[8 : 8 + length]), size_bytes=len(image), what=name)
    return _Catalogue(pieces=held.pieces or (), entries=entries)


def _catalogue_from(plain: Mapping[str, Any]) -> _Catalogue:
    """Read back one that was told as JSON."""
    entries = {
        name: tuple(
            TensorEntry(name=tensor, dtype=dtype, shape=tuple(shape), begin=begin, end=end)
            for tensor, dtype, shape, begin, end in each
        )
        for name, each in plain["entries"].items()
    }
    return _Catalogue(pieces=pieces_from(plain["pieces"]), entries=entries)
