"""Chance: a fork's random numbers, as those of a Python of its own: seeded by the job's module, or like nobody's.

The zygote's generators would come out of each fork in the same state. Where the job's module seeded one while it was
imported, that is wanted, and is kept; else each worker gets a new seed from the system.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True, kw_only=True)
class Keys:
    """What a generator's numbers come from, apart from how many were drawn (up to some 600)."""

    python: tuple[int, ...]
    numpy: bytes
    torch: int


def settle() -> Keys:
    """Call before foreign code is loaded: from here on, drawing some numbers leaves the keys alone."""
    # Both make their numbers in batches of 624 words, the first with the first number.
    random.random()
    np.random.random()
    return keys()


def keys() -> Keys:
    """Of this process, now."""
    state: Any = np.random.get_state()
    return Keys(python=tuple(random.getstate()[1][:-1]), numpy=state[1].tobytes(), torch=torch.initial_seed())


@dataclass(frozen=True, kw_only=True)
class Chance:
    """What to do with each generator in a fork. `python`: the state to keep, None for a new seed."""

    python: Any
    reseed_numpy: bool
    reseed_torch: bool

    @classmethod
    def since(cls, before: Keys) -> Chance:
        """Call after foreign code was loaded."""
        now = keys()
        return cls(
            python=random.getstate() if now.python != before.python else None,
            reseed_numpy=now.numpy == before.numpy,
            reseed_torch=now.torch == before.torch,
        )

    def apply(self) -> None:
        """Call in the fork. Python's own generator was seeded anew by the fork itself."""
        if self.python is not None:
            random.setstate(self.python)
        if self.reseed_numpy:
            np.random.seed()
        if self.reseed_torch:
            torch.default_generator.seed()
