"""Mixing of integers: the one hash that the order, the digests and the per-sample seeds are made from.

Its values are part of the format of checkpoints (run digest) and of the order of samples: it must never change.
"""

from __future__ import annotations

MASK_64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix64(value: int) -> int:
    """A well-mixed 64-bit integer from any integer (the finalizer of splitmix64 over value + golden ratio)."""
    x = (value + _GOLDEN) & MASK_64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK_64
    return x ^ (x >> 31)


def mix_pair(first: int, second: int) -> int:
    """A well-mixed 64-bit integer from two integers; their order counts."""
    return mix64(mix64(first) ^ (second & MASK_64))
