"""Undo: what a step changes before it is done, taken at its beginning, so that the same step can be done again.

Parameters and what an optimizer keeps change only once the gradients of all ranks have arrived. Buffers (running
statistics) change in each forward pass, and generators with each draw; those of a GPU are seeded for each micro-batch.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Before:
    """As it was before a step."""

    buffers: tuple[tuple[Tensor, Tensor], ...]
    python: tuple[Any, ...]
    generator: Tensor
    numpy: Any
    """None where numpy is not in use."""

    @torch.no_grad()
    def put_back(self) -> None:
        """Be there again."""
        for buffer, value in self.buffers:
            buffer.copy_(value)
        random.setstate(self.python)
        torch.set_rng_state(self.generator)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)


@torch.no_grad()
def remember(models: Sequence[nn.Module]) -> Before:
    """Take what a step may change. Copies buffers, not parameters."""
    buffers = tuple((buffer, buffer.clone()) for model in models for buffer in model.buffers())
    numpy = sys.modules.get("numpy")
    return Before(
        buffers=buffers,
        python=random.getstate(),
        generator=torch.get_rng_state(),
        numpy=None if numpy is None else numpy.random.get_state(),
    )
