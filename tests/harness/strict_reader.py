"""A second reader of an iteration, written from the description of the format alone. Imports nothing of ours.

It is as strict as the system that the format comes from, and more: seven keys in common.json, no more; every file that
metadata.json names is there; every piece fits; the pieces of a tensor cover it. Bytes are read by `struct` and `json`.
"""

from __future__ import annotations

import ast
import json
import re
import struct
from dataclasses import dataclass
from pathlib import Path

import torch

COMMON_KEYS = {
    *("epoch_num", "step_num", "global_step", "loss_scale", "global_batch_size", "consumed_samples", "ckpt_status")
}
DTYPES = {
    "F64": (torch.float64, "Float64"),
    "F32": (torch.float32, "Float32"),
    "F16": (torch.float16, "Float16"),
    "BF16": (torch.bfloat16, "BFloat16"),
    "F8_E4M3": (torch.float8_e4m3fn, "F8_E4M3"),
    "F8_E5M2": (torch.float8_e5m2, "F8_E5M2"),
    "I64": (torch.int64, "Int64"),
    "I32": (torch.int32, "Int32"),
    "I16": (torch.int16, "Int16"),
    "I8": (torch.int8, "Int8"),
    "U8": (torch.uint8, "UInt8"),
    "BOOL": (torch.bool, "Bool"),
    "C64": (torch.complex64, "Complex64"),
}


@dataclass(frozen=True)
class Read:
    """What the directory says."""

    common: dict
    model: dict[str, torch.Tensor]
    opt: dict[str, torch.Tensor]
    files: tuple[str, ...]


def read_root(root: Path) -> Read:
    """Follow the tracker, as the format's own reader does."""
    text = (root / "latest_checkpointed_iteration.txt").read_text()
    assert re.fullmatch("[0-9]+", text), text
    return read_iteration(root / f"iteration_{int(text):08d}")


def read_iteration(directory: Path) -> Read:
    common = json.loads((directory / "common.json").read_text())
    assert set(common) == COMMON_KEYS
    names = sorted(path.name for path in directory.glob("*.safetensors"))
    shards = {name: read_safetensors(directory / name) for name in names}
    for kind in ("model", "opt"):
        numbers = [re.fullmatch(rf"(.+-)?{kind}-(\d{{7}})-(\d{{7}})\.safetensors", name) for name in names]
        found = [(int(match[2]), int(match[3])) for match in numbers if match]
        assert found == [(at, len(found)) for at in range(len(found))], f"{kind} files are not numbered 0..n-1 of n"
    metadata = json.loads((directory / "metadata.json").read_text())
    assert set(metadata) == {"state_dict_metadata", "storage_data"}
    whole: dict[str, torch.Tensor] = {}
    covered: dict[str, torch.Tensor] = {}
    kinds: dict[str, str] = {}
    for key, holders in metadata["storage_data"].items():
        name, offset = ast.literal_eval(key)
        facts = metadata["state_dict_metadata"][name]
        assert set(facts) == {"properties", "global_shape", "axis_fragmentations", "layout", "chunk"}
        assert len(facts["axis_fragmentations"]) == len(facts["global_shape"])
        chunk = next(each for each in facts["chunk"] if tuple(each["global_offset"]) == offset)
        for holder in holders:
            assert holder["storage_rank"] in holder["rank_group"]
            piece = shards[holder["file_name"]].pop(name)
            assert list(piece.shape) == chunk["local_shape"]
            assert facts["properties"]["dtype"] == next(told for kind, told in DTYPES.values() if kind == piece.dtype)
            if name not in whole:
                whole[name] = torch.zeros(facts["global_shape"], dtype=torch.uint8).to(piece.dtype)
                covered[name] = torch.zeros(facts["global_shape"], dtype=torch.bool)
            window = tuple(slice(at, at + size) for at, size in zip(offset, piece.shape, strict=True))
            assert whole[name][window].shape == piece.shape, "a piece reaches beyond the whole"
            assert not covered[name][window].any(), "pieces overlap"
            whole[name][window] = piece
            covered[name][window] = True
            kinds[name] = "opt" if re.search(r"(^|-)opt-\d{7}-", holder["file_name"]) else "model"
    assert all(each.all() for each in covered.values()), "pieces leave a hole"
    for facts in metadata["state_dict_metadata"].values():
        starts = [
            {each["global_offset"][axis] for each in facts["chunk"]} for axis in range(len(facts["global_shape"]))
        ]
        assert facts["axis_fragmentations"] == [len(each) for each in starts]
    assert not any(shards.values()), "a file holds tensors that metadata.json does not name"
    return Read(
        common=common,
        model={name: each for name, each in whole.items() if kinds[name] == "model"},
        opt={name: each for name, each in whole.items() if kinds[name] == "opt"},
        files=tuple(names),
    )


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """The file format from its own description: length, JSON, elements without gaps."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length].decode("utf-8"))
    assert header.pop("__metadata__", {"format": "pt"}) == {"format": "pt"}
    body = data[8 + length :]
    tensors, covered = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        assert begin == covered, "a gap"
        covered = end
        kind = DTYPES[entry["dtype"]][0]
        flat = torch.tensor(list(body[begin:end]), dtype=torch.uint8)
        tensors[name] = flat.view(kind).reshape(entry["shape"]) if end > begin else torch.empty(entry["shape"]).to(kind)
    assert covered == len(body), "bytes behind the last tensor"
    return tensors
