"""The seed's metadata.json: which file holds which piece of which tensor. Pure."""

from __future__ import annotations

import ast
import json
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


@dataclass(frozen=True, kw_only=True)
class TensorFacts:
    """A whole tensor in one file. `dtype` is the safetensors name."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def to_plain(self) -> list[Any]:
        """JSON types only."""
        return [self.name, self.dtype, list(self.shape)]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> TensorFacts:
        """Read back what `to_plain` made."""
        name, dtype, shape = plain
        return cls(name=name, dtype=dtype, shape=tuple(shape))


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """A whole tensor and the file and rank that it was written by."""

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
    """The file's text for tensors that each lie whole in one file."""
    state: dict[str, Any] = {}
    storage: dict[str, Any] = {}
    for tensor in sorted(tensors, key=lambda each: each.facts.name):
        facts = tensor.facts
        start = [0] * len(facts.shape)
        state[facts.name] = {
            "properties": {
                "dtype": _DTYPES.get(facts.dtype, facts.dtype),
                "replica_id": 0,
                "allow_shape_mismatch": False,
                "allow_to_save": True,
            },
            "global_shape": list(facts.shape),
            "axis_fragmentations": [1] * len(facts.shape),
            "layout": None,
            "chunk": [{"global_offset": start, "local_shape": list(facts.shape)}],
        }
        storage[str((facts.name, tuple(start)))] = [
            {"file_name": tensor.file_name, "storage_rank": tensor.rank, "rank_group": [tensor.rank]}
        ]
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
    try:
        name, offset = ast.literal_eval(key)
        file_name = entries[0]["file_name"]
        shape = tuple(int(size) for size in state[name]["global_shape"])
        piece = Piece(name=name, global_shape=shape, offset=tuple(int(at) for at in offset), file_name=file_name)
    except (ValueError, SyntaxError, TypeError, KeyError, IndexError, RecursionError, MemoryError) as error:
        raise ValueError(f"{METADATA}: cannot read the entry {key!r:.80} ({error!r:.80})") from error
    if not is_safe_name(file_name):
        raise ValueError(f"{METADATA} names the file {file_name!r:.80}, which is not a plain file name")
    if len(piece.offset) != len(shape):
        raise ValueError(f"{METADATA}: {name!r} has shape {list(shape)} but a piece at {list(piece.offset)}")
    return piece
