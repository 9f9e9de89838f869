"""An iteration on disk -> a state in memory, every byte of it verified before anyone uses it."""

from __future__ import annotations

import os

from torch import Tensor

from elastic.checkpoint.checksums import fault_of
from elastic.checkpoint.image import read_views
from elastic.checkpoint.layout import MANIFEST, MAX_JSON_BYTES, ShardKind, parse_shard_name
from elastic.checkpoint.manifest import FileFacts, Manifest, digest
from elastic.checkpoint.shards import decode_shard, original_form
from elastic.checkpoint.state import Captured
from elastic.checkpoint.storage import LARGE_BYTES, BulkReader, Storage
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


def read_iteration(directory: str, manifest: Manifest, *, storage: Storage, weights_only: bool = False) -> Captured:
    """All tensors of an iteration, verified. Files that the manifest does not name do not exist.

    Raises:
        CheckpointDamaged: a file is not what the manifest says; the message names it.
    """
    tensors: dict[ShardKind, dict[str, Tensor]] = {ShardKind.MODEL: {}, ShardKind.OPT: {}}
    notes = manifest.values.get("tensors", {})
    if not isinstance(notes, dict):
        raise CheckpointDamaged(f"{MANIFEST}: its notes on tensors are {notes!r:.60}, expected an object")
    for name, facts in manifest.files.items():
        shard = parse_shard_name(name)
        if weights_only and shard is not None and shard.kind is ShardKind.OPT:
            continue
        data = _verified(directory, name, facts, storage)
        if shard is not None:
            for each, tensor in decode_file(data, file_name=name).items():
                if each in tensors[shard.kind]:
                    raise CheckpointDamaged(f"{each} is in {name} and in another file, too")
                tensors[shard.kind][each] = original_form(tensor, notes.get(each))
    return Captured(model=tensors[ShardKind.MODEL], opt=tensors[ShardKind.OPT], values=dict(manifest.values))


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
            return storage.read_bulk(path)
        return storage.read(path)
    except OSError as error:
        raise CheckpointDamaged(f"{name} cannot be read: {error}") from error
    except MemoryError as error:
        size_bytes = storage.size_bytes(os.path.join(directory, name))
        raise CheckpointDamaged(f"{name} has {size_bytes} bytes, more than can be read into memory here") from error
