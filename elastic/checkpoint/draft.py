"""What a save says of the run beside its tensors: the manifest before its files are known, and common.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from elastic.checkpoint.layout import CommonInfo, Health
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.policy import Signs
from elastic.checkpoint.root import RootIdentity


@dataclass(frozen=True, kw_only=True)
class SaveMeta:
    """What a save says of the run beside its state."""

    iteration: int
    """Optimizer steps really taken."""
    consumed_samples: int
    global_batch_size: int
    generation: int
    run_digest: int
    seed: int
    order_version: int
    settings: Mapping[str, Any]
    """The resolved configuration, JSON types."""
    global_step: int
    """The seed's view of progress: samples over the global batch size."""
    epoch_num: int = 0
    step_num: int = 0
    loss_scale: float | None = None
    """None: that of a tracked grad scaler, where there is one."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The data's order, fingerprint and slots, JSON types; for who goes on."""
    signs: Signs = field(default_factory=Signs)
    """What is known of the run's health."""


def draft_of(
    meta: SaveMeta, *, identity: RootIdentity, values: Mapping[str, Any], health: Health | None, world_size: int,
    has_optimizer: bool, ancestors: tuple[str, ...],
) -> Manifest:  # fmt: skip
    """The manifest of a state, without its files. `values`: JSON state of the tracked objects."""
    return Manifest(
        job_id=identity.job_id,
        lineage=identity.lineage,
        generation=meta.generation,
        iteration=meta.iteration,
        consumed_samples=meta.consumed_samples,
        world_size=world_size,
        global_batch_size=meta.global_batch_size,
        seed=meta.seed,
        order_version=meta.order_version,
        run_digest=meta.run_digest,
        settings=meta.settings,
        data=meta.data,
        values=values,
        has_optimizer=has_optimizer,
        torch_version=str(torch.__version__),
        ancestors=ancestors,
        files={},
        ckpt_status=health,
    )


def common_of(meta: SaveMeta, tracked: Mapping[str, Any], health: Health | None) -> CommonInfo:
    """What common.json says. The loss scale is that of a tracked grad scaler, unless it was given."""
    scales = (each.get_scale() for each in tracked.values() if callable(getattr(each, "get_scale", None)))
    return CommonInfo(
        epoch_num=meta.epoch_num,
        step_num=meta.step_num,
        global_step=meta.global_step,
        loss_scale=meta.loss_scale if meta.loss_scale is not None else next(scales, None),
        global_batch_size=meta.global_batch_size,
        consumed_samples=meta.consumed_samples,
        ckpt_status=health,
    )
