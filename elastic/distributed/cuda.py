"""All that only a GPU shows. UNTESTED on a GPU so far: written from the documentation, run only where none is."""

from __future__ import annotations

import torch


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
