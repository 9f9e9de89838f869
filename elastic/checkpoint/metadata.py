"""The seed's metadata.json: which file holds which piece of which tensor. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from elastic.checkpoint.layout import METADATA, is_safe_name, load_json, take

_DTYPES = {
    "F64": "Float64",
    "F32": "Float32",
    "F16": "Float16",
    "BF16": "BFloat16",
    "I64": "Int64",
    "I32": "Int32",
    "I16": "Int16",
    "I8": "Int8",
    "U64": "UInt64",
    "U32": "UInt32",
    "U16": "UInt16",
    "U8": "UInt8",
    "BOOL": "Bool",
    "C64": "Complex64",
}


_KEY = re.compile(
    r"""\((?P<name>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"),\s*\((?P<offset>[0-9,\s]{0,2000})\)\)""", re.DOTALL
)
"""`('NAME', (0, 0))`: Python's text of a pair, of which the name may hold escapes."""
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_PLAIN_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "'": "'", '"': '"'}
_MOST_DIMENSIONS = 64


@dataclass(frozen=True, kw_only=True)
class TensorFacts:
    """A tensor in one file, or the part of it that is there. `dtype` is the safetensors name."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    """Of what is in the file."""
    whole: tuple[int, ...]
    """Shape of the whole tensor."""
    offset: tuple[int, ...]
    """Where in the whole the part begins."""

    def to_plain(self) -> list[Any]:
        """JSON types only."""
        return [self.name, self.dtype, list(self.shape), list(self.whole), list(self.offset)]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> TensorFacts:
        """Read back what `to_plain` made."""
        name, dtype, *sizes = plain
        shape, whole, offset = map(tuple, sizes)
        return cls(name=name, dtype=dtype, shape=shape, whole=whole, offset=offset)


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """A tensor or part of one, and the file and rank that it was written by."""

    facts: TensorFacts
    file_name: str
    rank: int


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One piece of a tensor: where it begins in the whole, and the file that holds it."""

    name: str
    global_shape: tuple[int, ...]
    offset: tuple[int, ...]
    file_name: str


def build_metadata(tensors: Iterable[StoredTensor]) -> bytes:
    """The file's text."""
    state: dict[str, Any] = {}
    storage: dict[str, Any] = {}
    for tensor in sorted(tensors, key=lambda each: (each.facts.name, each.facts.offset)):
        facts = tensor.facts
        entry = state.setdefault(
            facts.name,
            {
                "properties": {
                    "dtype": _DTYPES.get(facts.dtype, facts.dtype),
                    "replica_id": 0,
                    "allow_shape_mismatch": False,
                    "allow_to_save": True,
                },
                "global_shape": list(facts.whole),
                "layout": None,
                "chunk": [],
            },
        )
        entry["chunk"].append({"global_offset": list(facts.offset), "local_shape": list(facts.shape)})
        storage[str((facts.name, facts.offset))] = [
            {"file_name": tensor.file_name, "storage_rank": tensor.rank, "rank_group": [tensor.rank]}
        ]
    for entry in state.values():
        starts = zip(*(chunk["global_offset"] for chunk in entry["chunk"]), strict=True)
        entry["axis_fragmentations"] = [len(set(each)) for each in starts]
    return json.dumps({"state_dict_metadata": state, "storage_data": storage}, ensure_ascii=False).encode()


def parse_metadata(data: bytes) -> tuple[Piece, ...]:
    """Every piece that the file names, one for each (tensor, offset).

    Raises:
        ValueError: not the seed's form, or a file name that is a path.
    """
    plain = load_json(data, what=METADATA)
    state = take(plain, "state_dict_metadata", dict, what=METADATA)
    storage = take(plain, "storage_data", dict, what=METADATA)
    return tuple(_piece(key, entries, state) for key, entries in storage.items())


def _piece(key: str, entries: Any, state: dict[str, Any]) -> Piece:
    name, offset = _parse_key(key)
    match entries:
        # The first of the ranks that hold this piece will do.
        case [{"file_name": str(file_name)}, *_] if is_safe_name(file_name):
            pass
        case _:
            raise ValueError(f"{METADATA}: {key!r:.80} is in {entries!r:.80}, expected a list of plain file names")
    match state.get(name):
        case {"global_shape": list(sizes)} if len(sizes) <= _MOST_DIMENSIONS and all(map(_is_size, sizes)):
            shape = tuple(sizes)
        case other:
            raise ValueError(f"{METADATA}: what it says of {name!r:.80} is {other!r:.80}, expected a global_shape")
    if len(offset) != len(shape):
        raise ValueError(f"{METADATA}: {name!r:.80} has shape {list(shape)} but a piece at {list(offset)}")
    return Piece(name=name, global_shape=shape, offset=offset, file_name=file_name)


def _parse_key(key: str) -> tuple[str, tuple[int, ...]]:
    match = _KEY.fullmatch(key)
    if match is None:
        raise ValueError(f"{METADATA}: cannot read the key {key!r:.80}, expected ('NAME', (OFFSET, ...))")
    parts = [part.strip() for part in match["offset"].split(",") if part.strip()]
    if any(not re.fullmatch(r"[0-9]{1,18}", part) for part in parts):
        raise ValueError(f"{METADATA}: cannot read the offset in the key {key!r:.80}")
    return _ESCAPE.sub(_unescape, match["name"][1:-1]), tuple(int(part) for part in parts)


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if len(code) > 1:
        number = int(code[1:], 16)
        return chr(number) if number < 0x110000 else match[0]
    return _PLAIN_ESCAPES.get(code, match[0])


def _is_size(size: Any) -> bool:
    return type(size) is int and 0 <= size < 1 << 63
