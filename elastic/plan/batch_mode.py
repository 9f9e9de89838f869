"""Batch modes: how large the global batch is at a world size, and what that does to the learning rate."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass


class BatchMode(enum.StrEnum):
    """What stays the same when the world size changes."""

    FIXED_GLOBAL = "fixed_global"
    PER_RANK = "per_rank"


class RateRule(enum.StrEnum):
    """How the learning rate follows a global batch that is not the one it was chosen for."""

    NONE = "none"
    LINEAR = "linear"
    SQRT = "sqrt"


@dataclass(frozen=True, kw_only=True)
class Batching:
    """The global batch at one world size, in samples, and the factor that its learning rate is multiplied by."""

    global_batch_size: int
    rate_factor: float
    reason: str


def batching(
    mode: BatchMode, *, world_size: int, global_batch_size: int, rank_batch_size: int, rule: RateRule
) -> Batching:
    """The batch of a step. `global_batch_size` is what the learning rate was chosen for, in both modes.

    per_rank is MiniMind's way: every rank takes `rank_batch_size` samples, so that the batch grows with the world.
    The factor is the ratio of the two batches (linear: Goyal et al. 2017; sqrt: Krizhevsky 2014, usual for Adam).
    """
    if mode is BatchMode.FIXED_GLOBAL:
        reason = f"the global batch is {global_batch_size} samples at any world size"
        return Batching(global_batch_size=global_batch_size, rate_factor=1.0, reason=reason)
    size = world_size * rank_batch_size
    ratio = size / global_batch_size
    factor = {RateRule.NONE: 1.0, RateRule.LINEAR: ratio, RateRule.SQRT: math.sqrt(ratio)}[rule]
    reason = (
        f"{world_size} ranks of {rank_batch_size} samples make a global batch of {size}; the learning rate was chosen "
        f"for {global_batch_size} and is multiplied by {factor:.6g} (rule {rule.value})"
    )
    return Batching(global_batch_size=size, rate_factor=factor, reason=reason)
