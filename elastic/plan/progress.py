"""Progress: samples are the truth; steps, epochs and learning-rate factors are views of them.

A step number means something only together with a batch size. So a run counts consumed samples, and the step formulas
of other systems are views here that say when they are not exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a run stands: optimizer steps really taken (never falls), and samples that they consumed."""

    iteration: int = 0
    consumed_samples: int = 0

    def advance(self, stop: int) -> Progress:
        """Progress once a step has consumed the samples up to `stop`."""
        if stop <= self.consumed_samples:
            raise ValueError(f"a step must consume samples: position {self.consumed_samples}, the step stops at {stop}")
        return Progress(iteration=self.iteration + 1, consumed_samples=stop)


@dataclass(frozen=True, kw_only=True)
class ScaledStep:
    """A saved step number in the units of another batch or world size, and whether it is the same place."""

    step: int
    exact: bool
    remainder_samples: int
    """Samples between the start of `step` and the true position: starting at `step` would use them twice."""
    reason: str


def scale_by_global_batch(saved_step: int, *, saved_global_batch: int, global_batch: int) -> ScaledStep:
    """Saved step x saved global batch size / present global batch size, rounded down (MindSpore Transformers)."""
    _at_least(1, saved_global_batch=saved_global_batch, global_batch=global_batch)
    _at_least(0, saved_step=saved_step)
    return _scaled(
        saved_step * saved_global_batch,
        global_batch,
        saved=f"step {saved_step} with global batch size {saved_global_batch}",
        present=f"with global batch size {global_batch}",
    )


def scale_by_world_size(step: int, *, saved_world_size: int, world_size: int, micro_batch_size: int = 1) -> ScaledStep:
    """Step x saved world size // present world size: loader steps of an epoch (MiniMind).

    Each rank takes `micro_batch_size` samples a loader step, so that the batch of all ranks grows with the world.
    """
    _at_least(1, saved_world_size=saved_world_size, world_size=world_size, micro_batch_size=micro_batch_size)
    _at_least(0, step=step)
    return _scaled(
        step * saved_world_size * micro_batch_size,
        world_size * micro_batch_size,
        saved=f"loader step {step} at world size {saved_world_size}",
        present=f"at world size {world_size}",
    )


def _scaled(consumed_samples: int, batch_samples: int, *, saved: str, present: str) -> ScaledStep:
    step, remainder = divmod(consumed_samples, batch_samples)
    same = f"{saved} is {consumed_samples} samples, which is step {step} {present}"
    if remainder == 0:
        return ScaledStep(step=step, exact=True, remainder_samples=0, reason=same)
    return ScaledStep(
        step=step,
        exact=False,
        remainder_samples=remainder,
        reason=f"{same} and {remainder} samples more: starting at step {step} would repeat {remainder} samples, at "
        f"step {step + 1} skip {batch_samples - remainder}; starting at sample {consumed_samples} does neither",
    )


def global_step_view(consumed_samples: int, global_batch: int) -> int:
    """Step number for readers that count in whole global batches (`global_step` of common.json), rounded down."""
    _at_least(1, global_batch=global_batch)
    _at_least(0, consumed_samples=consumed_samples)
    return consumed_samples // global_batch


def epoch_of(consumed_samples: int, dataset_length: int) -> tuple[int, int]:
    """The (epoch, position within it) of the next sample, both from 0."""
    _at_least(1, dataset_length=dataset_length)
    _at_least(0, consumed_samples=consumed_samples)
    return divmod(consumed_samples, dataset_length)


def warmup_cosine(consumed_samples: int, *, warmup_samples: int, total_samples: int, floor: float = 0.0) -> float:
    """Learning-rate factor: linear from 0 to 1 over the warm-up, then a half cosine down to `floor` at the end.

    Pass the samples consumed once the step is done (its `stop`), or the first step of a warm-up moves nothing.
    """
    if consumed_samples < warmup_samples:
        return max(0, consumed_samples) / warmup_samples
    after_samples = total_samples - warmup_samples
    done = 1.0 if after_samples <= 0 else min(1.0, (consumed_samples - warmup_samples) / after_samples)
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * done))


def _at_least(least: int, **values: int) -> None:
    for name, value in values.items():
        if value < least:
            raise ValueError(f"{name} must be at least {least}; got {value}")
