"""Restored: what a restore tells of where the run stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elastic.checkpoint.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class Restored:
    """Where the run stands after a restore. Without a restored position (`tier` "none", or weights only): all 0."""

    iteration: int = 0
    consumed_samples: int = 0
    run_digest: int = 0
    global_batch_size: int | None = None
    """That of the saved run; None where no position was restored."""
    world_size: int | None = None
    seed: int | None = None
    order_version: int | None = None
    lineage: str = ""
    tier: str = "none"
    """Where the state came from: "process" (it was kept), "memory", "peer", "disk", or "none" where the run begins."""
    reason: str
    own: bool = False
    """Whether it came from this run's own save_path."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The configuration of the run that saved it."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """What that run knew of its data."""


def restored_from(manifest: Manifest, *, tier: str, reason: str, own: bool, lineage: str | None = None) -> Restored:
    """Where a run stands that goes on from the state that a manifest describes. `lineage`: another than its own."""
    return Restored(
        iteration=manifest.iteration,
        consumed_samples=manifest.consumed_samples,
        run_digest=manifest.run_digest,
        global_batch_size=manifest.global_batch_size,
        world_size=manifest.world_size,
        seed=manifest.seed,
        order_version=manifest.order_version,
        lineage=manifest.lineage if lineage is None else lineage,
        tier=tier,
        reason=reason,
        own=own,
        settings=manifest.settings,
        data=manifest.data,
    )
