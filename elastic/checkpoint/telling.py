"""Telling: what the door to checkpoints says of restores and saves, as events."""

from __future__ import annotations

from elastic import events
from elastic.checkpoint.arrivals import Arrived
from elastic.checkpoint.draft import SaveMeta
from elastic.checkpoint.flight import SaveResult
from elastic.checkpoint.restored import Restored


def restored_event(restored: Restored, *, seconds: float, arrived: Arrived) -> events.Restored:
    """Where the run stands now, how long it took to get there, and what came to this rank for it."""
    return events.Restored(
        tier=restored.tier,
        iteration=restored.iteration,
        consumed_samples=restored.consumed_samples,
        seconds=seconds,
        reason=restored.reason,
        arrived=arrived.ways,
        givers=arrived.givers,
    )


def saved_event(
    meta: SaveMeta, result: SaveResult, *, interval_s: float | None, skipped: int
) -> events.CheckpointSaved:
    """An iteration was committed."""
    return events.CheckpointSaved(
        iteration=meta.iteration,
        consumed_samples=meta.consumed_samples,
        bytes=result.total_bytes,
        seconds=result.seconds,
        interval_s=interval_s,
        stall_s=result.stall_s,
        skipped=skipped,
    )
