"""The directory that Hugging Face tools write: one `model.safetensors`, or several with an index. Pure: names, texts.

model.safetensors                                  everything, or
model.safetensors.index.json                       {"metadata": {"total_size"}, "weight_map": {tensor: file}}
model-00001-of-00003.safetensors ...               and the files that it names
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

from elastic.checkpoint.layout import is_safe_name, load_json, take

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def is_huggingface(names: Collection[str]) -> bool:
    """Whether a directory with these names is in that form."""
    return INDEX in names or SINGLE in names


def parse_index(data: bytes) -> dict[str, str]:
    """Tensor -> file that holds it.

    Raises:
        ValueError: not an index, or a file name that is a path.
    """
    weights: dict[str, str] = take(load_json(data, what=INDEX), "weight_map", dict, what=INDEX)
    if not weights:
        raise ValueError(f"{INDEX} names no tensor")
    for name, file_name in weights.items():
        if not is_safe_name(file_name) or not file_name.endswith(".safetensors"):
            raise ValueError(
                f"{INDEX} says that {name!r:.80} is in {file_name!r:.80}, which is no name of a safetensors file"
            )
    return weights


def build_index(weights: Mapping[str, str], *, total_bytes: int) -> bytes:
    """The index of an export."""
    plain = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(weights.items()))}
    return (json.dumps(plain, ensure_ascii=False, indent=2) + "\n").encode()


def file_names(count: int) -> list[str]:
    """What the files of an export are called."""
    return [SINGLE] if count == 1 else [f"model-{at:05d}-of-{count:05d}.safetensors" for at in range(1, count + 1)]


def split(sizes_bytes: Mapping[str, int], *, most_bytes: int) -> Sequence[tuple[str, ...]]:
    """Tensors in the order given, in files of at most `most_bytes` each; a larger tensor gets one of its own."""
    files: list[tuple[str, ...]] = []
    held: list[str] = []
    held_bytes = 0
    for name, size_bytes in sizes_bytes.items():
        if held and held_bytes + size_bytes > most_bytes:
            files.append(tuple(held))
            held, held_bytes = [], 0
        held.append(name)
        held_bytes += size_bytes
    return [*files, tuple(held)]
