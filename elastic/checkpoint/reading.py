"""An iteration on disk -> a state in memory, every byte of it verified before anyone uses it."""

from __future__ import annotations

import os

import torch
from torch import Tensor

from elastic.checkpoint.checksums import fault_of
from elastic.checkpoint.layout import MANIFEST, MAX_JSON_BYTES, METADATA, ShardKind, parse_shard_name
from elastic.checkpoint.manifest import FileFacts, Manifest, digest
from elastic.checkpoint.metadata import Piece, parse_metadata
from elastic.checkpoint.shards import decode_shard, original_form
from elastic.checkpoint.state import Captured
from elastic.checkpoint.storage import Storage
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
    for name, facts in manifest.files.items():
        shard = parse_shard_name(name)
        if weights_only and shard is not None and shard.kind is ShardKind.OPT:
            continue
        data = _verified(directory, name, facts, storage)
        if shard is not None:
            for each, tensor in decode_shard(data, file_name=name).items():
                tensors[shard.kind][each] = original_form(tensor, notes.get(each))
    return Captured(model=tensors[ShardKind.MODEL], opt=tensors[ShardKind.OPT], values=dict(manifest.values))


def read_foreign(directory: str, *, storage: Storage) -> Captured:
    """The weights that another system left in the seed's layout, with or without metadata.json, pieces put together.

    Raises:
        CheckpointDamaged: a file or a piece is missing or not what metadata.json says.
    """
    try:
        names = storage.names(directory)
        pieces: tuple[Piece, ...] = ()
        if METADATA in names:
            path = os.path.join(directory, METADATA)
            pieces = parse_metadata(read_small(path, storage=storage, limit_bytes=MAX_JSON_BYTES))
    except (OSError, ValueError) as error:
        raise CheckpointDamaged(str(error)) from error
    files: dict[str, dict[str, Tensor]] = {}
    for name in names:
        shard = parse_shard_name(name)
        if shard is not None and shard.kind is ShardKind.MODEL:
            files[name] = decode_shard(_bytes(directory, name, storage), file_name=name)
    model: dict[str, Tensor] = {}
    if pieces:
        _assemble(model, [piece for piece in pieces if _is_model(piece.file_name)], files)
    else:
        _join(model, files)
    return Captured(model=model, opt={}, values={})


def _join(model: dict[str, Tensor], files: dict[str, dict[str, Tensor]]) -> None:
    """Without metadata.json nobody says where a piece belongs: only whole tensors, the same in every file, will do."""
    families = {(shard.prefix, shard.total) for name in files if (shard := parse_shard_name(name)) is not None}
    if len(families) > 1:
        raise CheckpointDamaged(f"there is no {METADATA}, and the files are of several saves: {', '.join(files)}")
    for name, tensors in files.items():
        for each, tensor in tensors.items():
            if not torch.equal(model.setdefault(each, tensor), tensor):
                raise CheckpointDamaged(f"there is no {METADATA}, and {each} in {name} is not what other files hold")


def _assemble(model: dict[str, Tensor], pieces: list[Piece], files: dict[str, dict[str, Tensor]]) -> None:
    filled: dict[str, int] = {}
    for piece in pieces:
        part = files.get(piece.file_name, {}).get(piece.name)
        if part is None:
            raise CheckpointDamaged(f"{METADATA} says that {piece.file_name} holds {piece.name}, but it does not")
        whole = model.get(piece.name)
        if whole is None:
            whole = model[piece.name] = torch.empty(piece.global_shape, dtype=part.dtype)
        try:
            for axis, (at, size) in enumerate(zip(piece.offset, part.shape, strict=True)):
                whole = whole.narrow(axis, at, size)
        except (RuntimeError, IndexError, ValueError) as error:
            raise CheckpointDamaged(f"{piece.name}: the piece at {list(piece.offset)} does not fit: {error}") from error
        whole.copy_(part)
        filled[piece.name] = filled.get(piece.name, 0) + part.numel()
    for name, count in filled.items():
        if count != model[name].numel():
            raise CheckpointDamaged(f"{name}: its pieces hold {count} elements, expected {model[name].numel()}")


def _is_model(name: str) -> bool:
    shard = parse_shard_name(name)
    return shard is not None and shard.kind is ShardKind.MODEL


def _verified(directory: str, name: str, facts: FileFacts, storage: Storage) -> bytes:
    data = _bytes(directory, name, storage)
    if (fault := fault_of(data, facts, name=name)) is not None:
        raise CheckpointDamaged(fault)
    return data


def _bytes(directory: str, name: str, storage: Storage) -> bytes:
    try:
        return storage.read(os.path.join(directory, name))
    except OSError as error:
        raise CheckpointDamaged(f"{name} cannot be read: {error}") from error
