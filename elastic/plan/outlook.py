"""Outlook: where a saved run would go on at another world and batch size, by our rule and by those of other systems."""

from __future__ import annotations

from dataclasses import dataclass

from elastic.plan.batch import BatchPlan, share
from elastic.plan.progress import scale_by_global_batch, scale_by_world_size


@dataclass(frozen=True, kw_only=True)
class Stand:
    """A saved position, and how the run was cut when it was saved. `epoch_position`: samples used of its epoch."""

    iteration: int
    consumed_samples: int
    epoch_position: int
    world_size: int
    global_batch_size: int
    micro_batch_size: int


@dataclass(frozen=True, kw_only=True)
class Row:
    """One rule: where it goes on, in its own words, and what becomes of samples there."""

    rule: str
    goes_on_at: str
    repeated_samples: int
    skipped_samples: int
    note: str = ""

    @property
    def exact(self) -> bool:
        """Whether no sample is used twice or left out."""
        return not (self.repeated_samples or self.skipped_samples)


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """Every rule's answer, and how the slots of a step are shared out at the new world size."""

    rows: tuple[Row, ...]
    slots_by_rank: tuple[int, ...]

    @property
    def idle_share(self) -> float:
        """Part of all ranks' time in which they wait for the rank with most slots."""
        most = max(self.slots_by_rank)
        return 1 - sum(self.slots_by_rank) / (most * len(self.slots_by_rank)) if most else 0.0


def outlook(stand: Stand, *, world_size: int, global_batch_size: int) -> Outlook:
    """What each rule makes of a saved position at another world size and global batch."""
    plan = BatchPlan(
        global_batch_size=global_batch_size, micro_batch_size=stand.micro_batch_size, total_samples=global_batch_size
    )
    shares = (share(plan.slots, world_size=world_size, rank=rank) for rank in range(world_size))
    return Outlook(
        rows=(
            Row(
                rule="elastic",
                goes_on_at=f"sample {stand.consumed_samples}, iteration {stand.iteration + 1}",
                repeated_samples=0,
                skipped_samples=0,
                note="samples are the truth: exact at any world and batch size",
            ),
            *_mindspore(stand, global_batch_size),
            *_minimind(stand, world_size),
        ),
        slots_by_rank=tuple(len(slots) for slots in shares),
    )


def _mindspore(stand: Stand, global_batch_size: int) -> tuple[Row, ...]:
    """saved_step x saved_global_batch / global_batch, rounded down; what rounding up would do stands beside it."""
    saved_step = stand.consumed_samples // stand.global_batch_size
    scaled = scale_by_global_batch(
        saved_step, saved_global_batch=stand.global_batch_size, global_batch=global_batch_size
    )
    lost = stand.consumed_samples - saved_step * stand.global_batch_size
    down = Row(
        rule="MindSpore Transformers",
        goes_on_at=f"step int({saved_step} x {stand.global_batch_size} / {global_batch_size}) = {scaled.step}",
        repeated_samples=scaled.remainder_samples + lost,
        skipped_samples=0,
    )
    if not scaled.remainder_samples:
        return (down,)
    beyond = (scaled.step + 1) * global_batch_size - stand.consumed_samples
    up = Row(
        rule="the same, rounded up",
        goes_on_at=f"step {scaled.step + 1}",
        repeated_samples=max(0, -beyond),
        skipped_samples=max(0, beyond),
    )
    return down, up


def _minimind(stand: Stand, world_size: int) -> tuple[Row, ...]:
    """step x saved_world_size // world_size, in loader steps of an epoch, where every rank takes a micro-batch."""
    wide = stand.world_size * stand.micro_batch_size
    step = stand.epoch_position // wide
    scaled = scale_by_world_size(
        step, saved_world_size=stand.world_size, world_size=world_size, micro_batch_size=stand.micro_batch_size
    )
    repeated = scaled.remainder_samples + stand.epoch_position - step * wide
    note = "and the global batch changes with the world size"
    if 1 in (stand.world_size, world_size) and stand.world_size != world_size:
        note = "and a world of one uses another order: nearly all of the epoch's rest is repeated or left out"
    return (
        Row(
            rule="MiniMind",
            goes_on_at=f"loader step {step} x {stand.world_size} // {world_size} = {scaled.step} of the epoch",
            repeated_samples=repeated,
            skipped_samples=0,
            note=note,
        ),
    )
