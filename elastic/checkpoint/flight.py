"""A save in flight, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass

from elastic.checkpoint.commit import Saving
from elastic.checkpoint.draft import SaveMeta
from elastic.checkpoint.snapshots import Copied


@dataclass(frozen=True, kw_only=True)
class Flight:
    """A save under way. `copied`: what is written; None where there is nothing to write, since the copy failed."""

    saving: Saving
    meta: SaveMeta
    copied: Copied | None
    begun_s: float
    stall_s: float
    """How long training waited for it so far."""


@dataclass(frozen=True, kw_only=True)
class SaveResult:
    """How a save ended, the same on every rank."""

    saved: bool
    iteration: int
    total_bytes: int
    seconds: float
    reason: str
    stall_s: float = 0.0
    """How long training waited for it."""
    earlier: SaveResult | None = None
    """How the save before it ended, where that one was waited for first."""


def unsaved(meta: SaveMeta, reason: str, *, earlier: SaveResult | None = None) -> SaveResult:
    """Nothing was saved, or nothing yet."""
    return SaveResult(saved=False, iteration=meta.iteration, total_bytes=0, seconds=0.0, reason=reason, earlier=earlier)
