"""The image of a shard file: where in it each tensor will lie, planned before its bytes are there.

So a state is copied once, straight to where it can be written from, read from and mapped from. The bytes are those of
a safetensors file, its header filled up with spaces (which the format allows) so that data begins at a page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from elastic.checkpoint.cuts import Cut
from elastic.checkpoint.header import METADATA_KEY, TensorEntry, header_bytes, parse_header
from elastic.checkpoint.metadata import TensorFacts
from elastic.checkpoint.shards import Shard, encode_shard, facts_of_tensor, storable
from elastic.errors import CheckpointError

PAGE_BYTES = 4096

DTYPE_NAMES: Mapping[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
}
DTYPES: Mapping[str, torch.dtype] = {name: dtype for dtype, name in DTYPE_NAMES.items()}


@dataclass(frozen=True, kw_only=True)
class Image:
    """A shard file's bytes, ready to be written, and what each tensor is in them."""

    name: str
    data: bytes | memoryview
    tensors: tuple[TensorFacts, ...]


@dataclass(frozen=True, kw_only=True)
class ImagePlan:
    """Where everything lies. `header`: the file's bytes before the first tensor's."""

    name: str
    header: bytes
    tensors: tuple[TensorEntry, ...]
    cuts: Mapping[str, Cut]
    """Of those that are only a part of a tensor."""
    size_bytes: int


def heap_image(shard: Shard) -> Image:
    """The image in memory of its own; a copy, like any image.

    Raises:
        CheckpointError: a tensor that the format cannot hold.
    """
    data, facts = encode_shard(shard.tensors, shard.cuts)
    return Image(name=shard.name, data=data, tensors=tuple(facts))


def plan_image(shard: Shard) -> ImagePlan:
    """Lay out a shard: widest elements first, so that each tensor is aligned to its own.

    Raises:
        CheckpointError: a tensor that the format cannot hold.
    """
    plain = {name: storable(name, tensor) for name, tensor in shard.tensors.items()}
    begin = 0
    entries = {METADATA_KEY: {"format": "pt"}}
    placed: list[tuple[str, Tensor, str, int]] = []
    for name in sorted(plain, key=lambda each: (-plain[each].element_size(), each)):
        tensor = plain[name]
        if (dtype := DTYPE_NAMES.get(tensor.dtype)) is None:
            raise CheckpointError(f"{name} is of type {tensor.dtype}, which a safetensors file cannot hold")
        end = begin + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}  # type: ignore[dict-item]
        placed.append((name, tensor, dtype, begin))
        begin = end
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % PAGE_BYTES)
    start = 8 + len(text)
    tensors = tuple(
        TensorEntry(
            name=name,
            dtype=dtype,
            shape=tuple(tensor.shape),
            begin=start + at,
            end=start + at + tensor.numel() * tensor.element_size(),
        )
        for name, tensor, dtype, at in placed
    )
    header = len(text).to_bytes(8, "little") + text
    return ImagePlan(name=shard.name, header=header, tensors=tensors, cuts=shard.cuts, size_bytes=start + begin)


def views(data: memoryview, entries: tuple[TensorEntry, ...]) -> dict[str, Tensor]:
    """The tensors of an image as views of its bytes; `data` must be writable and stay where it is."""
    return {each.name: _view(data, each) for each in entries}


def read_views(data: memoryview, *, file_name: str) -> dict[str, Tensor]:
    """The same for an image of which nothing is known yet.

    Raises:
        ValueError: not a safetensors file.
    """
    length = header_bytes(bytes(data[:8]), size_bytes=len(data), what=file_name)
    return views(data, parse_header(bytes(data[8 : 8 + length]), size_bytes=len(data), what=file_name))


def facts(plan: ImagePlan) -> tuple[TensorFacts, ...]:
    """What each tensor of an image is."""
    return tuple(facts_of_tensor(each.name, each.dtype, each.shape, plan.cuts.get(each.name)) for each in plan.tensors)


def _view(data: memoryview, entry: TensorEntry) -> Tensor:
    dtype = DTYPES.get(entry.dtype)
    if dtype is None:
        raise ValueError(f"{entry.name!r:.80} is of type {entry.dtype}, which is not known here")
    if entry.begin == entry.end:
        return torch.empty(entry.shape, dtype=dtype)
    count = (entry.end - entry.begin) // dtype.itemsize
    return torch.frombuffer(data, dtype=dtype, count=count, offset=entry.begin).view(entry.shape)
