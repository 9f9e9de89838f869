"""All that only a GPU shows. UNTESTED on a GPU so far: written from the documentation, run only where none is.

Not run: NCCL, with one rank or several; CUDA tensors over gloo; dealt out parameters on a GPU; a worker that stays when
its group is aborted, and the memory that NCCL keeps then; the generators of a GPU through a restart; copies of the
state on a stream of their own into pinned memory (side_stream.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import MutableMapping
from typing import Any

import torch
from torch.distributed import distributed_c10d


def available() -> bool:
    """Whether this machine has a CUDA device that torch can use."""
    return torch.cuda.is_available()


def claim(local_rank: int) -> str:
    """Make this worker's GPU the present device and name it.

    Raises:
        IndexError: more workers on this node than GPUs.
    """
    count = torch.cuda.device_count()
    if local_rank >= count:
        raise IndexError(f"worker {local_rank} of this node has no GPU: {count} found; lower --nproc-per-node")
    torch.cuda.set_device(local_rank)
    return f"cuda:{local_rank}"


def name(device: str) -> str:
    """What kind of GPU it is."""
    return torch.cuda.get_device_name(device)


def seed(value: int) -> None:
    """Seed all GPUs' generators; cheap until CUDA is in use."""
    torch.cuda.manual_seed_all(value)


BACKEND = "cpu:gloo,cuda:nccl"
"""Small control messages stay on the CPU, so that both back ends are wanted in one group."""

_ON_ERROR = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
_CLEAN_UP_ONLY = "2"


def outlive_errors(environ: MutableMapping[str, str]) -> None:
    """Before a group is made: an error of NCCL ends its communicator, not this process and the state that it has.

    torchelastic sets 1 for its workers, with which torch ends the process. `environ`: this process's own.
    """
    environ[_ON_ERROR] = _CLEAN_UP_ONLY


def abort() -> None:
    """End whatever is waited for in the present group's NCCL communicator. From any thread. Never raises."""
    with contextlib.suppress(Exception):  # whatever it says, the group is over
        group: Any = distributed_c10d._get_default_group()
        group._get_backend(torch.device("cuda")).abort()
