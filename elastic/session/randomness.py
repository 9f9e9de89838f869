"""Randomness keyed by (seed, step, slot): what a micro-batch draws does not depend on who runs it, or on restarts."""

from __future__ import annotations

import hashlib
import random
import sys

import torch

from elastic.distributed import cuda


def slot_seed(seed: int, *, iteration: int, slot: int) -> int:
    """A 63-bit seed for one micro-batch."""
    data = f"{seed}/{iteration}/{slot}".encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") >> 1


def seed_slot(seed: int, *, iteration: int, slot: int) -> None:
    """Seed every generator that a job may draw from, before it sees a micro-batch."""
    seed_everything(slot_seed(seed, iteration=iteration, slot=slot))


def seed_everything(value: int) -> None:
    """Seed Python, torch and, where it is in use, numpy and CUDA."""
    random.seed(value)
    torch.default_generator.manual_seed(value)
    if cuda.available():
        cuda.seed(value)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(value % 2**32)
