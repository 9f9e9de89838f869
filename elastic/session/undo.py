"""Undo: what a step changes before it is done, taken at its beginning, so that the same step can be done again.

Parameters and what an optimizer keeps change only once the gradients of all ranks have arrived. Buffers (running
statistics) change in each forward pass, and generators with each draw; those of a GPU are seeded for each micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from elastic.data.fetch import Generators


@dataclass(frozen=True, kw_only=True)
class Before:
    """As it was before a step."""

    buffers: tuple[tuple[Tensor, Tensor], ...]
    generators: Generators

    @torch.no_grad()
    def put_back(self) -> None:
        """Be there again."""
        for buffer, value in self.buffers:
            buffer.copy_(value)
        self.generators.put_back()


@torch.no_grad()
def remember(models: Sequence[nn.Module]) -> Before:
    """Take what a step may change. Copies buffers, not parameters."""
    buffers = tuple((buffer, buffer.clone()) for model in models for buffer in model.buffers())
    return Before(buffers=buffers, generators=Generators.now())
