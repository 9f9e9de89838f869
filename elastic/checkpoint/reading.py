"""An iteration on disk -> a state in memory, every byte of it verified before anyone uses it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from elastic.checkpoint.arrivals import Count, nowhere
from elastic.checkpoint.checksums import fault_of
from elastic.checkpoint.cuts import Cut
from elastic.checkpoint.header import TensorEntry
from elastic.checkpoint.image import DTYPES, read_views
from elastic.checkpoint.layout import MANIFEST, MAX_JSON_BYTES, METADATA, ShardKind, parse_shard_name
from elastic.checkpoint.manifest import FileFacts, Manifest, digest
from elastic.checkpoint.metadata import Piece, parse_metadata
from elastic.checkpoint.partial import PartFile, PartReader, VerifiedFile, pieces_in
from elastic.checkpoint.pieces import assemble
from elastic.checkpoint.placing import meta_tensors, read_placed
from elastic.checkpoint.rng import PREFIX
from elastic.checkpoint.shards import decode_shard, original_form
from elastic.checkpoint.state import Captured
from elastic.checkpoint.storage import LARGE_BYTES, BulkReader, Storage, large_memory
from elastic.checkpoint.survey import read_small
from elastic.errors import CheckpointDamaged


def read_manifest(directory: str, *, storage: Storage, manifest_digest: str) -> Manifest:
    """The manifest that was chosen, and no other one that has come to its place since.

    Raises:
        CheckpointDamaged: missing, altered or replaced.
    """
    try:
        data = read_small(os.path.join(directory, MANIFEST), storage=storage, limit_bytes=MAX_JSON_BYTES)
        if digest(data) != manifest_digest:
            raise CheckpointDamaged(f"{MANIFEST} is not the one that was chosen: its digest differs")
        return Manifest.from_bytes(data)
    except (OSError, ValueError) as error:
        raise CheckpointDamaged(str(error)) from error


def begin_iteration(
    directory: str, manifest: Manifest, *, storage: Storage, weights_only: bool = False,
    fits: Callable[[Captured], object] = lambda captured: None,
) -> Callable[[Mapping[str, Tensor], Count], Captured]:  # fmt: skip
    """All tensors of an iteration, in two steps. Files that the manifest does not name do not exist.

    First what can be known without them: `fits` is given the state without its numbers. What is returned then reads
    and verifies them, and counts each file; it is given tensors by name that may be read into, where that can be done,
    and these stand in the state. Where `fits` was not asked, since parts are to be put together first, they are left
    alone.

    Raises:
        CheckpointDamaged: a file is not what the manifest says; the message names it.
    """
    shards = {
        name: shard.kind
        for name in manifest.files
        if (shard := parse_shard_name(name)) and not (weights_only and shard.kind is ShardKind.OPT)
    }
    others = {
        name: bytes(_verified(directory, name, facts, storage))
        for name, facts in manifest.files.items()
        if parse_shard_name(name) is None
    }
    metadata = others.get(METADATA, b"")
    headers = {name: _header(directory, name, manifest.files[name], storage) for name in shards}
    known = [each.name for entries in headers.values() for each in entries or ()]
    whole = None not in headers.values() and len(set(known)) == len(known)
    if whole:
        fits(_captured(manifest, {n: (shards[n], meta_tensors(e or ())) for n, e in headers.items()}, metadata))

    def read(live: Mapping[str, Tensor], count: Count) -> Captured:
        files: dict[str, tuple[ShardKind, dict[str, Tensor]]] = {}
        for name, kind in shards.items():
            into = live if whole else {}
            files[name] = kind, _tensors(directory, name, manifest.files[name], headers[name], into, storage)
            count(manifest.files[name].size_bytes)
        return _captured(manifest, files, metadata)

    return read


def _tensors(
    directory: str, name: str, facts: FileFacts, entries: Sequence[TensorEntry] | None, live: Mapping[str, Tensor],
    storage: Storage,
) -> dict[str, Tensor]:  # fmt: skip
    if entries is None or not isinstance(storage, BulkReader):
        return decode_file(_verified(directory, name, facts, storage), file_name=name)
    path, threads = os.path.join(directory, name), torch.get_num_threads()
    return read_placed(path, facts, entries, live=live, storage=storage, name=name, threads=threads)


def _header(directory: str, name: str, facts: FileFacts, storage: Storage) -> tuple[TensorEntry, ...] | None:
    """What a file holds, where it can be read straight to where its tensors are to be."""
    if not facts.chunks or not isinstance(storage, BulkReader):
        return None
    try:
        entries = VerifiedFile(directory, name, facts, storage=storage).entries()
    except CheckpointDamaged:
        return None  # all of it is read then, which tells more of the damage
    return entries if all(each.dtype in DTYPES for each in entries) else None


def _captured(
    manifest: Manifest, found: Mapping[str, tuple[ShardKind, dict[str, Tensor]]], metadata: bytes
) -> Captured:  # fmt: skip
    files: dict[ShardKind, dict[str, dict[str, Tensor]]] = {ShardKind.MODEL: {}, ShardKind.OPT: {}}
    for file_name, (of, each) in found.items():
        files[of][file_name] = each
    notes = _notes(manifest)
    tensors = {kind: _joined(held, metadata) for kind, held in files.items()}
    return Captured(
        model={name: original_form(each, notes.get(name)) for name, each in tensors[ShardKind.MODEL].items()},
        opt={name: original_form(each, notes.get(name)) for name, each in tensors[ShardKind.OPT].items()},
        own=True,
        values=dict(manifest.values),
    )


def read_own_parts(
    directory: str, manifest: Manifest, *, storage: Storage, cuts: Mapping[str, Cut], rank: int,
    weights_only: bool = False, count: Count = nowhere,
) -> Captured:  # fmt: skip
    """What one rank needs of an iteration: of the tensors in `cuts` its part, of the others all; verified.

    Of the files of which some is needed only that much is read; random states of other ranks are not. `count`: told
    of what is read of shards.

    Raises:
        CheckpointDamaged: what was read is not what the manifest says; the message names the file.
    """
    if METADATA not in manifest.files:
        raise CheckpointDamaged(f"{MANIFEST} names no {METADATA}")
    metadata = bytes(_verified(directory, METADATA, manifest.files[METADATA], storage))
    files: dict[str, PartFile] = {}
    for name, facts in manifest.files.items():
        if (shard := parse_shard_name(name)) is None:
            _verified(directory, name, facts, storage)
        elif shard.kind is ShardKind.MODEL or not weights_only:
            files[name] = VerifiedFile(directory, name, facts, storage=storage, count=count)
    return gather_parts(manifest, files, pieces=pieces_in(metadata), cuts=cuts, rank=rank)


def others_own(manifest: Manifest, rank: int) -> tuple[str, ...]:
    """How the names of tensors begin that are those of other ranks alone: their random states."""
    return tuple(f"{PREFIX}{each}." for each in range(manifest.world_size) if each != rank)


def gather_parts(
    manifest: Manifest, files: Mapping[str, PartFile], *, pieces: Iterable[Piece], cuts: Mapping[str, Cut], rank: int,
    copy: bool = False,
) -> Captured:  # fmt: skip
    """What one rank needs of a state, from all the files that it lies in. `copy`: where none may lie in these.

    Raises:
        CheckpointDamaged: it is not there, or not what pieces and manifest say.
    """
    pieces = tuple(pieces)
    readers = {kind: PartReader(pieces, cuts) for kind in ShardKind}
    for name, file in files.items():
        if (shard := parse_shard_name(name)) is None:
            raise CheckpointDamaged(f"{name!r:.80} is no shard")
        readers[shard.kind].take(name, file, skip=others_own(manifest, rank))
    notes = _notes(manifest)
    found: dict[ShardKind, dict[str, Tensor]] = {}
    known: dict[str, Cut] = {}
    for kind, reader in readers.items():
        tensors = reader.finish(copy=copy)
        found[kind] = {
            name: each if cut is not None else original_form(each, notes.get(name))
            for name, (each, cut) in tensors.items()
        }
        known |= {name: cut for name, (_, cut) in tensors.items() if cut is not None}
    return Captured(
        model=found[ShardKind.MODEL], opt=found[ShardKind.OPT], cuts=known, values=dict(manifest.values)
    )  # fmt: skip


def _notes(manifest: Manifest) -> dict[str, object]:
    notes = manifest.values.get("tensors", {})
    if not isinstance(notes, dict):
        raise CheckpointDamaged(f"{MANIFEST}: its notes on tensors are {notes!r:.60}, expected an object")
    return notes


def _joined(files: Mapping[str, Mapping[str, Tensor]], metadata: bytes) -> dict[str, Tensor]:
    """Tensors of several files; one that lies in more than one of them is put together."""
    places: dict[str, list[str]] = {}
    for file_name, tensors in files.items():
        for name in tensors:
            places.setdefault(name, []).append(file_name)
    several = {name for name, found in places.items() if len(found) > 1}
    if not several:
        return {name: files[found[0]][name] for name, found in places.items()}
    try:
        pieces: dict[str, list[Piece]] = {name: [] for name in several}
        for piece in parse_metadata(metadata):
            if piece.name in several:
                pieces[piece.name].append(piece)
    except ValueError as error:
        raise CheckpointDamaged(str(error)) from error
    for name in several:
        if sorted(piece.file_name for piece in pieces[name]) != sorted(places[name]):
            raise CheckpointDamaged(
                f"{name} is in {', '.join(places[name])}; {METADATA} says it is in "
                f"{', '.join(piece.file_name for piece in pieces[name]) or 'none'}"
            )
    return {
        name: assemble(pieces[name], files) if name in several else files[found[0]][name]
        for name, found in places.items()
    }


def decode_file(data: bytes | memoryview, *, file_name: str) -> dict[str, Tensor]:
    """The tensors of what `read_file` gave; views of it, where it may stay.

    Raises:
        CheckpointDamaged: not a safetensors file.
    """
    if isinstance(data, bytes):
        return decode_shard(data, file_name=file_name)
    try:
        return read_views(data, file_name=file_name)
    except ValueError as error:
        raise CheckpointDamaged(str(error)) from error


def _verified(directory: str, name: str, facts: FileFacts, storage: Storage) -> bytes | memoryview:
    data = read_file(directory, name, storage)
    if (fault := fault_of(data, facts, name=name)) is not None:
        raise CheckpointDamaged(fault)
    return data


def read_file(directory: str, name: str, storage: Storage) -> bytes | memoryview:
    """One file; a large one in memory where its tensors can stay.

    Raises:
        CheckpointDamaged: it cannot be read, or not into the memory that there is.
    """
    path = os.path.join(directory, name)
    try:
        if isinstance(storage, BulkReader) and (storage.size_bytes(path) or 0) >= LARGE_BYTES:
            data = large_memory(storage.size_bytes(path) or 0)
            with storage.open_bulk(path) as file:
                return data[: file.read_into([data], 0)]
        return storage.read(path)
    except OSError as error:
        raise CheckpointDamaged(f"{name} cannot be read: {error}") from error
    except MemoryError as error:
        size_bytes = storage.size_bytes(os.path.join(directory, name))
        raise CheckpointDamaged(f"{name} has {size_bytes} bytes, more than can be read into memory here") from error
