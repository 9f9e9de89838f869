"""Handover: a state goes from the ranks that have it to those that lack it, directly, and checked.

Every rank that has it serves some of those that do not. What travels is what a copy in memory holds: the manifest,
then the images of the shards, each with a checksum that is told before.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from elastic.checkpoint.arrivals import PEER, Arrivals
from elastic.checkpoint.image import Image, facts, plan_image, views
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.seams import Group
from elastic.checkpoint.shards import Shard, storable
from elastic.checkpoint.state import Captured
from elastic.checkpoint.storage import large_memory
from elastic.errors import CheckpointDamaged

_CHUNK_BYTES = 64 << 20
_MOST_NOTE_BYTES = 1 << 30
_NAMES_SEED = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def pack(shard: Shard) -> Image:
    """The image of a shard in memory of its own, that can be sent from. Raises CheckpointError, MemoryError."""
    plan = plan_image(shard)
    data = large_memory(plan.size_bytes)[: plan.size_bytes]
    data[: len(plan.header)] = plan.header
    for name, target in views(data, plan.tensors).items():
        target.copy_(storable(name, shard.tensors[name]))
    return Image(name=plan.name, data=data, tensors=facts(plan))


def routes(*, sources: Sequence[int], behind: Sequence[int]) -> list[tuple[int, int]]:
    """Who serves whom, as (source, receiver): the work is shared out evenly."""
    return [(sources[at % len(sources)], rank) for at, rank in enumerate(behind)]


def give(manifest: Manifest, images: Sequence[Image], *, line: Group, to: int) -> None:
    """Send a state. Raises PeerLost."""
    files = [[image.name, len(image.data), zlib.crc32(image.data)] for image in images]
    about = {"files": files, "manifest": manifest.to_bytes().decode()}
    note = torch.frombuffer(bytearray(json.dumps(about).encode()), dtype=torch.uint8)
    line.send(torch.tensor([note.numel()], dtype=torch.int64), to=to)
    line.send(note, to=to)
    for image in images:
        for chunk in _chunks(torch.frombuffer(image.data, dtype=torch.uint8)):
            line.send(chunk, to=to)


def take(*, line: Group, source: int, arrivals: Arrivals) -> tuple[Manifest, dict[str, memoryview]]:
    """Receive a state. What is counted are its images, from when it was announced: who gives it makes them before.

    Raises:
        CheckpointDamaged: it is not what was told of it. All of it was received: the line is free again.
        PeerLost: from the line.
    """
    size = torch.zeros(1, dtype=torch.int64)
    line.receive_(size, source=source)
    if not 0 < int(size) < _MOST_NOTE_BYTES:
        raise CheckpointDamaged(f"rank {source} announced a note of {int(size)} bytes")
    note = torch.empty(int(size), dtype=torch.uint8)
    line.receive_(note, source=source)
    about = _parsed(note, source)
    images, wrong = {}, []
    for name, size_bytes, checksum in about["files"]:
        image = large_memory(size_bytes)[:size_bytes]
        count = arrivals.begin(PEER, givers=(source,))
        for chunk in _chunks(torch.frombuffer(image, dtype=torch.uint8)):
            line.receive_(chunk, source=source)
            count(chunk.numel())
        if zlib.crc32(image) != checksum:
            wrong.append(name)
        images[name] = image
    if wrong:
        raise CheckpointDamaged(f"what came from rank {source} does not have the checksum that was told: {wrong}")
    return Manifest.from_bytes(about["manifest"].encode()), images


def content(captured: Captured, *, without: Collection[str] = ()) -> int:
    """A digest of a replicated state, whatever its order: equal for equal bits; some 20 GB/s.

    Of each tensor the sum of its 64-bit words, times a number made of its name. `without`: names that are left out.
    """
    total = 0
    for name, tensor in (captured.model | captured.opt).items():
        if name in without:
            continue
        weight = zlib.crc32(name.encode()) * _NAMES_SEED | 1
        total += weight * (_sum_of_words(tensor) + tensor.numel())
    plain = json.dumps(captured.values.get("objects"), sort_keys=True, default=str).encode()
    return (total + zlib.crc32(plain) * _NAMES_SEED) & _MASK


def _sum_of_words(tensor: Tensor) -> int:
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    whole = flat.numel() // 8 * 8
    words = flat[:whole]
    if words.storage_offset() % 8:
        words = words.clone()
    return int(words.view(torch.int64).sum()) + int(flat[whole:].sum())


def _chunks(flat: Tensor) -> Iterator[Tensor]:
    return (chunk for chunk in torch.split(flat, _CHUNK_BYTES) if chunk.numel())


def _parsed(note: Tensor, source: int) -> Mapping[str, Any]:
    try:
        about = json.loads(note.numpy().tobytes())
        fit = all(isinstance(name, str) and 0 <= size_bytes < 1 << 50 for name, size_bytes, _ in about["files"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointDamaged(f"rank {source} sent what is no note of a state: {error}") from error
    if not fit:
        raise CheckpointDamaged(f"rank {source} sent a note of impossible files")
    found: Mapping[str, Any] = about
    return found
