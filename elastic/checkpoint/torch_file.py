"""The one place that opens another system's pickle: weights only, in a process of its own, never imported by ours.

    python -c LAUNCH PATHS source.pth folder    ->    folder/tree.json, folder/tensors.safetensors

What comes out is JSON and tensors in the form of `values.encode`, so that the caller unpickles nothing.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from elastic.checkpoint.shards import encode_shard
from elastic.checkpoint.values import encode
from elastic.errors import CheckpointError

_ROOM_BYTES = 4 << 30
"""Address space beside a multiple of the file's size: torch's own threads and buffers."""


def main(arguments: Sequence[str]) -> int:
    """Convert one file; the exit code is 0, or 1 with one line on stderr that says what is wrong."""
    source, folder = arguments
    _limit_memory(os.path.getsize(source))
    tensors: dict[str, Tensor] = {}

    def keep(name: str, tensor: Tensor) -> str:
        tensors[name] = tensor
        return name

    try:
        tree = encode(torch.load(source, map_location="cpu", weights_only=True), path="", sink=keep)
        data, _ = encode_shard(tensors)
    except CheckpointError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except Exception as error:  # noqa: BLE001 - because a file of unknown origin may make the loader raise anything
        sys.stderr.write(f"{type(error).__name__}: {error}\n".split("\n")[0] + "\n")
        return 1
    with open(os.path.join(folder, "tensors.safetensors"), "wb") as file:
        file.write(data)
    with open(os.path.join(folder, "tree.json"), "w", encoding="utf-8") as text:
        json.dump(tree, text, allow_nan=False)
    return 0


def _limit_memory(size_bytes: int) -> None:
    """A small file may not make the loader ask for any amount of memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        used_bytes = int(file.read().split()[0]) * resource.getpagesize()
    limit = used_bytes + 8 * size_bytes + _ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
