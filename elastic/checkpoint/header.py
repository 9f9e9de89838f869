"""The head of a safetensors file, read strictly and without torch: which tensors it holds, and where.

The format: 8 bytes with the length of a JSON object (little endian), the object, then the elements of all tensors one
after another without a gap. The object maps each name to dtype, shape and [begin, end) counted from the first element.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastic.checkpoint.layout import load_json
from elastic.checkpoint.storage import Storage

MAX_HEADER_BYTES = 100_000_000
"""The bound that the format's own library sets."""

METADATA_KEY = "__metadata__"

DTYPE_BITS: Mapping[str, int] = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL"), 8),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
_MOST_DIMENSIONS = 64


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """One tensor of a file. `begin` and `end` count bytes from the beginning of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(path: str, *, storage: Storage) -> tuple[TensorEntry, ...]:
    """The tensors of a file, in the order of their bytes, by reading no more than its head.

    Raises:
        ValueError: not a safetensors file.
        OSError: not readable.
    """
    what = os.path.basename(path)
    size_bytes = storage.size_bytes(path)
    if size_bytes is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    length = header_bytes(storage.read_part(path, 0, 8), size_bytes=size_bytes, what=what)
    return parse_header(storage.read_part(path, 8, 8 + length), size_bytes=size_bytes, what=what)


def header_bytes(first: bytes, *, size_bytes: int, what: str) -> int:
    """The length of the JSON object, from the first 8 bytes; never more than the file has.

    Raises:
        ValueError: impossible in a file of this size.
    """
    length = int.from_bytes(first[:8], "little")
    if len(first) < 8 or length < 2 or length > min(size_bytes - 8, MAX_HEADER_BYTES):
        raise ValueError(
            f"{what} is not a safetensors file: a header of {length} bytes cannot be in a file of {size_bytes} bytes"
        )
    return length


def parse_header(text: bytes, *, size_bytes: int, what: str) -> tuple[TensorEntry, ...]:
    """Check the JSON object of a file against the file's size.

    Raises:
        ValueError: anything but tensors that fill the file without gap or overlap; the message begins with `what`.
    """
    plain = load_json(text, what=f"the header of {what}", limit_bytes=MAX_HEADER_BYTES)
    notes = plain.pop(METADATA_KEY, {})
    if not isinstance(notes, dict) or any(not isinstance(each, str) for each in notes.values()):
        raise ValueError(f"{what}: {METADATA_KEY} is not an object of strings")
    start = 8 + len(text)
    entries = sorted((_entry(name, each, start, what) for name, each in plain.items()), key=lambda each: each.begin)
    at = start
    # An empty tensor may lie on the border of two others; so the order by (begin, end) decides.
    for entry in sorted(entries, key=lambda each: (each.begin, each.end)):
        if entry.begin != at:
            raise ValueError(f"{what}: {entry.name!r:.80} begins at byte {entry.begin}, expected {at}")
        at = entry.end
    if at != size_bytes:
        raise ValueError(f"{what} has {size_bytes} bytes, but its header describes {at}")
    return tuple(entries)


def _entry(name: str, plain: Any, start: int, what: str) -> TensorEntry:
    match plain:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]} if len(plain) == 3:
            if dtype in DTYPE_BITS and _is_shape(shape) and 0 <= begin <= end:
                bits = DTYPE_BITS[dtype]
                for size in shape:
                    bits *= size
                if bits == (end - begin) * 8:
                    return TensorEntry(name=name, dtype=dtype, shape=tuple(shape), begin=start + begin, end=start + end)
    raise ValueError(f"{what}: the entry of {name!r:.80} is {plain!r:.120}, which no tensor can be")


def _is_shape(shape: list[Any]) -> bool:
    return len(shape) <= _MOST_DIMENSIONS and all(type(size) is int and 0 <= size < 1 << 63 for size in shape)
