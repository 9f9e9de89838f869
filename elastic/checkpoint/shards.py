"""Tensors <-> shard files: who writes what, and the bytes of a file. Tensors come back as they were, bit for bit."""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import safetensors
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from elastic.checkpoint.cuts import Cut
from elastic.checkpoint.layout import ShardKind, shard_name
from elastic.checkpoint.metadata import TensorFacts
from elastic.errors import CheckpointDamaged, CheckpointError


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A file that one rank writes."""

    name: str
    kind: ShardKind
    tensors: Mapping[str, Tensor]
    cuts: Mapping[str, Cut] = field(default_factory=dict)
    """Of those among the tensors that are only a part of one."""


def own_shards(
    *, model: Mapping[str, Tensor], opt: Mapping[str, Tensor], own: Mapping[str, Tensor], rank: int, world_size: int,
    prefix: str, cuts: Mapping[str, Cut] | None = None,
) -> list[Shard]:  # fmt: skip
    """The files of one rank: its share of the replicated `model` and `opt`, and its `own` state beside the latter.

    Every rank must have own state, or none. A file is numbered among those of its kind that hold something.
    `cuts`: of the tensors in `model` and `opt` that are no replicas but this rank's part, which it writes itself.

    Raises:
        CheckpointError: a tensor is dealt out over other ranks than these.
    """
    cuts = cuts or {}
    for name, cut in cuts.items():
        if (cut.rank, cut.ranks) != (rank, world_size):
            raise CheckpointError(
                f"{name} is dealt out over {cut.ranks} ranks, of which this is {cut.rank}; the world is rank {rank} "
                f"of {world_size}: deal it out over all of them"
            )
    state = {ShardKind.MODEL: model, ShardKind.OPT: opt}
    sizes = {
        f"{kind}/{name}": size_bytes(each)
        for kind, tensors in state.items()
        for name, each in tensors.items()
        if name not in cuts
    }
    owners = assign(sizes, world_size=world_size)
    shards = []
    for kind, tensors in state.items():
        writers = {name: cuts[name].holders if name in cuts else (owners[f"{kind}/{name}"],) for name in tensors}
        holders = sorted({each for ranks in writers.values() for each in ranks})
        mine = {name: each for name, each in tensors.items() if rank in writers[name]}
        if kind is ShardKind.OPT and own:
            holders = list(range(world_size))
            mine |= own
        if mine:
            name = shard_name(kind, index=holders.index(rank), total=len(holders), prefix=prefix)
            parts = {each: cuts[each] for each in mine if each in cuts}
            for each, cut in parts.items():
                if 0 in cut.shape:
                    mine[each] = mine[each].new_empty(cut.shape)  # a whole without elements is one piece
            shards.append(Shard(name=name, kind=kind, tensors=mine, cuts=parts))
    return shards


def assign(sizes_bytes: Mapping[str, int], *, world_size: int) -> dict[str, int]:
    """Which rank writes which tensor of a replicated state: each one once, bytes balanced, same on every rank.

    Largest first, each to the rank with least so far; with more ranks than tensors some get none.
    """
    loads = [(0, rank) for rank in range(world_size)]
    owners: dict[str, int] = {}
    for name in sorted(sizes_bytes, key=lambda each: (-sizes_bytes[each], each)):
        load, rank = heapq.heappop(loads)
        owners[name] = rank
        # A tensor without elements still costs its entry, so that such ones spread too.
        heapq.heappush(loads, (load + max(1, sizes_bytes[name]), rank))
    return owners


def size_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def describe(tensors: Mapping[str, Tensor], cuts: Mapping[str, Cut] | None = None) -> dict[str, Any]:
    """What a file cannot say of its tensors: complex128, and the strides of those that do not lie row by row."""
    notes: dict[str, Any] = {}
    for name, tensor in tensors.items():
        note: dict[str, Any] = {}
        if tensor.dtype == torch.complex128:
            note["dtype"] = "complex128"
        if name not in (cuts or {}) and not tensor.is_contiguous() and _is_dense(tensor.shape, tensor.stride()):
            note["strides"] = list(tensor.stride())
        if note:
            notes[name] = note
    return notes


def encode_shard(
    tensors: Mapping[str, Tensor], cuts: Mapping[str, Cut] | None = None
) -> tuple[bytes, list[TensorFacts]]:
    """The bytes of a safetensors file, and what each tensor is in it. `cuts`: of those that are parts.

    Raises:
        CheckpointError: a tensor that the format cannot hold.
    """
    stored: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        plain = storable(name, tensor).to("cpu").contiguous()
        at = plain.untyped_storage().data_ptr()
        stored[name] = plain.clone() if at in storages else plain  # the format refuses shared memory
        storages.add(at)
    try:
        data = save_tensors(stored, metadata={"format": "pt"})
        return data, _facts(data, cuts or {})
    except (ValueError, KeyError, RuntimeError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"a tensor cannot be stored as safetensors: {error}") from error


def decode_shard(data: bytes, *, file_name: str) -> dict[str, Tensor]:
    """The tensors of a file.

    Raises:
        CheckpointDamaged: not a safetensors file.
    """
    try:
        return load_tensors(data)
    except (ValueError, KeyError, TypeError, RuntimeError, safetensors.SafetensorError) as error:
        raise CheckpointDamaged(f"{file_name} is not a readable safetensors file: {error}") from error


def original_form(tensor: Tensor, note: Any) -> Tensor:
    """Give a tensor read from a file the dtype and strides that `describe` noted.

    Raises:
        CheckpointDamaged: a note that `describe` cannot have made for it.
    """
    if not note:
        return tensor
    if not isinstance(note, dict):
        raise CheckpointDamaged(f"a note on a tensor is {note!r:.60}, expected an object")
    if note.get("dtype") == "complex128":
        if tensor.dtype != torch.float64 or tensor.shape[-1:] != (2,):
            raise CheckpointDamaged(f"{tensor.dtype} {list(tensor.shape)} cannot be a stored complex128")
        tensor = torch.view_as_complex(tensor)
    if (strides := note.get("strides")) is not None:
        # Strides with gaps would make a small file ask for any amount of memory.
        sound = isinstance(strides, list) and len(strides) == tensor.dim() and all(map(_is_stride, strides))
        if not sound or not _is_dense(tensor.shape, strides):
            raise CheckpointDamaged(f"strides {strides!r:.60} do not fill a tensor of shape {list(tensor.shape)}")
        shaped = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
        tensor = shaped.copy_(tensor)
    return tensor


def storable(name: str, tensor: Tensor) -> Tensor:
    """The tensor as the format can hold it, where it lies: no copy, and not always row by row.

    Raises:
        CheckpointError: it cannot be stored.
    """
    if type(tensor).__module__.startswith("torch.distributed"):
        raise CheckpointError(
            f"{name} is a sharded tensor ({type(tensor).__name__}): only replicated state can be saved"
        )
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise CheckpointError(f"{name} is a {tensor.layout} or quantized tensor: only dense ones can be saved")
    plain = tensor.detach().resolve_conj().resolve_neg()
    if plain.dtype == torch.complex128:
        plain = torch.view_as_real(plain)
    return plain


def _is_stride(stride: Any) -> bool:
    return type(stride) is int and 0 <= stride < 1 << 63


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements fill their memory without gap or overlap, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def facts_of_tensor(name: str, dtype: str, shape: tuple[int, ...], cut: Cut | None) -> TensorFacts:
    """What a tensor, or the part of one that `cut` gives, is in its file."""
    whole, offset = (shape, (0,) * len(shape)) if cut is None else (cut.shape, cut.window.offset)
    return TensorFacts(name=name, dtype=dtype, shape=shape, whole=whole, offset=offset)


def _facts(data: bytes, cuts: Mapping[str, Cut]) -> list[TensorFacts]:
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    facts = []
    for name, entry in header.items():
        if name != "__metadata__":
            facts.append(facts_of_tensor(name, entry["dtype"], tuple(entry["shape"]), cuts.get(name)))
    return facts
