"""Weights that another system left, in the seed's layout or Hugging Face's -> a state. No checksums there: strict."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from elastic.checkpoint.huggingface import INDEX, SINGLE, is_huggingface, parse_index
from elastic.checkpoint.layout import MAX_JSON_BYTES, METADATA, ShardKind, parse_shard_name
from elastic.checkpoint.metadata import Piece, parse_metadata
from elastic.checkpoint.pieces import assemble
from elastic.checkpoint.reading import decode_file, read_file
from elastic.checkpoint.state import Captured
from elastic.checkpoint.storage import Storage
from elastic.checkpoint.survey import read_small
from elastic.errors import CheckpointDamaged


def read_foreign(directory: str, *, storage: Storage) -> Captured:
    """The weights in a directory that we did not write.

    Raises:
        CheckpointDamaged: a file or a piece is missing or not what the directory's own texts say.
    """
    try:
        names = storage.names(directory)
        if is_huggingface(names):
            return Captured(model=_read_huggingface(directory, names, storage), opt={}, values={})
        return Captured(model=read_seed_kind(directory, ShardKind.MODEL, storage=storage), opt={}, values={})
    except (OSError, ValueError) as error:
        raise CheckpointDamaged(str(error)) from error


def read_seed_kind(directory: str, kind: ShardKind, *, storage: Storage) -> dict[str, Tensor]:
    """All tensors of one kind of shards in the seed's layout, with or without metadata.json, pieces put together.

    Raises:
        CheckpointDamaged: see `read_foreign`.
        OSError, ValueError: a text that cannot be read.
    """
    names = storage.names(directory)
    files: dict[str, dict[str, Tensor]] = {}
    for name in names:
        shard = parse_shard_name(name)
        if shard is not None and shard.kind is kind:
            files[name] = decode_file(read_file(directory, name, storage), file_name=name)
    if METADATA not in names:
        return _join(files)
    data = read_small(os.path.join(directory, METADATA), storage=storage, limit_bytes=MAX_JSON_BYTES)
    pieces: dict[str, list[Piece]] = {}
    for piece in parse_metadata(data):
        shard = parse_shard_name(piece.file_name)
        if shard is not None and shard.kind is kind:
            pieces.setdefault(piece.name, []).append(piece)
    return {name: assemble(each, files) for name, each in pieces.items()}


def _read_huggingface(directory: str, names: Sequence[str], storage: Storage) -> dict[str, Tensor]:
    if SINGLE in names:
        return decode_file(read_file(directory, SINGLE, storage), file_name=SINGLE)
    data = read_small(os.path.join(directory, INDEX), storage=storage, limit_bytes=MAX_JSON_BYTES)
    weights = parse_index(data)
    model: dict[str, Tensor] = {}
    for file_name in sorted(set(weights.values())):
        tensors = decode_file(read_file(directory, file_name, storage), file_name=file_name)
        wanted = {name for name, place in weights.items() if place == file_name}
        if gone := sorted(wanted - tensors.keys()):
            raise CheckpointDamaged(f"{INDEX} says that {file_name} holds {gone[0]}, but it does not")
        model |= {name: tensors[name] for name in wanted}
    return model


def _join(files: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Without metadata.json nobody says where a piece belongs: only whole tensors, the same in every file, will do."""
    families = {(shard.prefix, shard.total) for name in files if (shard := parse_shard_name(name)) is not None}
    if len(families) > 1:
        raise CheckpointDamaged(f"there is no {METADATA}, and the files are of several saves: {', '.join(files)}")
    joined: dict[str, Tensor] = {}
    for name, tensors in files.items():
        for each, tensor in tensors.items():
            if not same_bits(joined.setdefault(each, tensor), tensor):
                raise CheckpointDamaged(f"there is no {METADATA}, and {each} in {name} is not what other files hold")
    return joined


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors agree in type, shape and every bit, those of nan included."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(_bytes(one), _bytes(other))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
