"""Reading a file of tensors to where they are to be: into tensors that are there already, else into memory of its own.

One pass over the bytes, without a copy in between: each chunk is verified right after it was read, while the processor
has it at hand. So what is read into is not what it was when damage is found: whoever reads takes another state then.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from elastic.checkpoint.background import in_thread
from elastic.checkpoint.checksums import crc32, fault_of
from elastic.checkpoint.header import TensorEntry
from elastic.checkpoint.image import DTYPES, views
from elastic.checkpoint.manifest import FileFacts
from elastic.checkpoint.storage import BulkFile, BulkReader, large_memory
from elastic.errors import CheckpointDamaged

_BATCH_BYTES = 1 << 19
"""Small chunks are read together, up to this many bytes: half of what a core's second cache holds."""
_BATCH_CHUNKS = 256
_SPAN_BYTES = 32 << 20
"""A thread of its own is worth it from here on."""
_ALIGN_BYTES = 64


@dataclass(frozen=True, kw_only=True)
class _Chunk:
    """Bytes of a file, where they go, and the checksum of the file up to them and with them."""

    begin: int
    end: int
    before: int
    after: int
    views: tuple[memoryview, ...]


def meta_tensors(entries: Iterable[TensorEntry]) -> dict[str, Tensor]:
    """Tensors of these shapes and types without any bytes: to see whether they fit before anything is read."""
    return {each.name: torch.empty(each.shape, dtype=DTYPES[each.dtype], device="meta") for each in entries}


def home_of(live: Tensor | None, like: Tensor) -> Tensor | None:
    """The tensor itself if the bytes of one like this can be put straight into its memory, else None."""
    if live is None or live.device.type != "cpu" or live.layout != torch.strided or live.is_conj() or live.is_neg():
        return None
    fits = type(live) is Tensor and live.dtype == like.dtype and live.shape == like.shape and live.is_contiguous()
    return live if fits else None


def apart(live: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those of some tensors that share no memory with another one of them."""
    held = sorted(
        (each.data_ptr(), each.data_ptr() + each.numel() * each.element_size(), name)
        for name, each in live.items()
        if each.device.type == "cpu" and each.layout == torch.strided
    )
    shared: set[str] = set()
    reach, owner = 0, ""
    for begin, end, name in held:
        if begin < reach:
            shared |= {owner, name}
        if end > reach:
            reach, owner = end, name
    return {name: live[name] for _, _, name in held if name not in shared}


def read_placed(
    path: str, facts: FileFacts, entries: Sequence[TensorEntry], *, live: Mapping[str, Tensor],
    storage: BulkReader, name: str, threads: int = 1,
) -> dict[str, Tensor]:  # fmt: skip
    """The tensors of a file, verified: those of `live` where they can take the bytes, fresh ones for the rest.

    `entries`: the file's, in the order of their bytes. Damage is found by chunks, so `facts` must have some.

    Raises:
        CheckpointDamaged: the file is not what was written, or cannot be read; `live` is then partly overwritten.
    """
    start = min((each.begin for each in entries), default=facts.size_bytes)
    tensors = _homes(entries, live)
    targets = [(0, memoryview(bytearray(start)))]  # what stands before them was verified when it was parsed
    targets += [(each.begin, _bytes_of(tensors[each.name])) for each in entries if each.begin < each.end]
    chunks = [each for each in _chunks(facts, targets) if each.end > start]
    spans = _spans(_batches(chunks), max(1, min(threads, facts.size_bytes // _SPAN_BYTES)))
    try:
        with storage.open_bulk(path) as file:
            begun = [in_thread(partial(_read, file, span)) for span in spans[1:]]
            sound = [_read(file, spans[0]), *(each.result() for each in begun)]
    except OSError as error:
        raise CheckpointDamaged(f"{name} cannot be read: {error}") from error
    if not all(sound):
        raise CheckpointDamaged(_fault(path, facts, storage, name))
    return tensors


def _homes(entries: Sequence[TensorEntry], live: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor where its bytes are to go. Those that need memory get it in one piece."""
    found: dict[str, Tensor] = {}
    fresh: list[TensorEntry] = []
    at = 0
    for each, like in zip(entries, meta_tensors(entries).values(), strict=True):
        if (home := home_of(live.get(each.name), like)) is not None:
            found[each.name] = home
        else:
            size_bytes = each.end - each.begin
            fresh.append(replace(each, begin=at, end=at + size_bytes))
            at += -(-size_bytes // _ALIGN_BYTES) * _ALIGN_BYTES
    try:
        return found | views(large_memory(at), tuple(fresh))
    except MemoryError as error:
        raise CheckpointDamaged(f"{at} bytes are more than can be read into memory here") from error


def _bytes_of(tensor: Tensor) -> memoryview:
    return memoryview(tensor.detach().reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


def _chunks(facts: FileFacts, targets: Sequence[tuple[int, memoryview]]) -> list[_Chunk]:
    begins = [begin for begin, _ in targets]
    chunks = []
    start = before = 0
    for end, after in facts.chunks:
        at = start
        parts = []
        while at < end:
            begin, view = targets[bisect.bisect_right(begins, at) - 1]
            part = view[at - begin : end - begin]
            parts.append(part)
            at += len(part)
        chunks.append(_Chunk(begin=start, end=end, before=before, after=after, views=tuple(parts)))
        start, before = end, after
    return chunks


def _batches(chunks: Sequence[_Chunk]) -> list[list[_Chunk]]:
    batches: list[list[_Chunk]] = []
    size_bytes = _BATCH_BYTES
    for each in chunks:
        size_bytes += each.end - each.begin
        if not batches or size_bytes > _BATCH_BYTES or len(batches[-1]) >= _BATCH_CHUNKS:
            batches.append([])
            size_bytes = each.end - each.begin
        batches[-1].append(each)
    return batches


def _spans(batches: list[list[_Chunk]], count: int) -> list[list[list[_Chunk]]]:
    """About as many batches for each of `count` threads, one after another."""
    return [batches[len(batches) * at // count : len(batches) * (at + 1) // count] for at in range(count)]


def _read(file: BulkFile, batches: Sequence[Sequence[_Chunk]]) -> bool:
    """Whether all of it could be read and is what was written."""
    for batch in batches:
        begin, end = batch[0].begin, batch[-1].end
        try:
            if file.read_into([view for each in batch for view in each.views], begin) != end - begin:
                return False
        except OSError:
            return False  # why is found out once no thread reads the file any more
        for each in batch:
            found = each.before
            for view in each.views:
                found = crc32(view, found)
            if found != each.after:
                return False
    return True


def _fault(path: str, facts: FileFacts, storage: BulkReader, name: str) -> str:
    """In words, with the place: by reading all of it again."""
    try:
        if (size_bytes := storage.size_bytes(path)) != facts.size_bytes:
            return f"{name} has {size_bytes} bytes, expected {facts.size_bytes}"
        data = storage.read(path)
    except (OSError, MemoryError) as error:
        return f"{name} cannot be read: {error}"
    return fault_of(data, facts, name=name) or f"{name} changed while it was read"
