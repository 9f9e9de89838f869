"""Checksums of a file, whole and by chunk, and what they say of damage: which bytes, and which tensors lie there. Pure.

Chunks break where tensors end, so that each tensor has checksums of its own and damage is told by its name. The
checksum of a chunk is that of the file up to the chunk's end: one pass makes all of them, and whoever starts from the
one before can still check each chunk alone.
"""

from __future__ import annotations

import json

from zlib_ng import zlib_ng

from elastic.checkpoint.manifest import FileFacts

CHUNK_BYTES = 1 << 20
"""No chunk is longer."""

_HEADER = "the header"
_NAMES_TOLD = 3


def crc32(data: bytes | memoryview, before: int = 0) -> int:
    """The CRC-32 that zlib computes, many times as fast where the processor can; `before`: of what came before it."""
    return zlib_ng.crc32(data, before)


def facts_of(data: bytes | memoryview, *, chunk_bytes: int = CHUNK_BYTES) -> FileFacts:
    """Length and checksums of a file with these bytes."""
    view = memoryview(data)
    chunks = []
    start = running = 0
    for end in _ends(data, chunk_bytes):
        running = crc32(view[start:end], running)
        chunks.append((end, running))
        start = end
    return FileFacts(size_bytes=len(data), crc32=running, chunks=tuple(chunks))


def fault_of(data: bytes | memoryview, facts: FileFacts, *, name: str) -> str | None:
    """What is wrong with the bytes of the file `name`, or None where they are what was written."""
    if len(data) != facts.size_bytes:
        return f"{name} has {len(data)} bytes, expected {facts.size_bytes}"
    if crc32(data) == facts.crc32:
        return None
    fault = f"{name} is not what was written: its checksum does not match"
    places = _places(data, facts)
    return f"{fault} {' and '.join(places)}" if places else fault


def _places(data: bytes | memoryview, facts: FileFacts) -> list[str]:
    view = memoryview(data)
    regions = _regions(data)
    places = []
    start = before = 0
    for end, after in facts.chunks:
        if crc32(view[start:end], before) != after:
            places.append(f"in bytes {start} to {end - 1}{_within(regions, start, end)}")
        start, before = end, after
    more = len(places) - _NAMES_TOLD
    return places if more <= 0 else [*places[:_NAMES_TOLD], f"{more} more places"]


def _within(regions: list[tuple[int, int, str]], start: int, end: int) -> str:
    names = [name for first, last, name in regions if first < end and last > start]
    return f" ({', '.join(names[:_NAMES_TOLD])}{', ...' if len(names) > _NAMES_TOLD else ''})" if names else ""


def _ends(data: bytes | memoryview, chunk_bytes: int) -> list[int]:
    """Where chunks end: at most `chunk_bytes` apart, and wherever a region does."""
    ends = []
    start = 0
    for stop in [*sorted({last for _, last, _ in _regions(data)}), len(data)]:
        ends += [*range(start + chunk_bytes, stop, chunk_bytes), *([stop] if stop > start else [])]
        start = max(start, stop)
    return ends


def _regions(data: bytes | memoryview) -> list[tuple[int, int, str]]:
    """(first byte, one past the last, name) of what is in a safetensors file; of another file nothing is known.

    The file may be damaged: what its header says is believed only where it is possible.
    """
    length = int.from_bytes(data[:8], "little")
    if not 2 <= length <= len(data) - 8 or bytes(data[8:9]) != b"{":
        return []
    regions = [(0, 8 + length, _HEADER)]
    try:
        header = json.loads(bytes(data[8 : 8 + length]))
    except (ValueError, RecursionError):
        return regions
    for name, entry in header.items():
        match entry:
            case {"data_offsets": [int(first), int(last)]} if 0 <= first < last <= len(data) - 8 - length:
                regions.append((8 + length + first, 8 + length + last, name))
    return regions
