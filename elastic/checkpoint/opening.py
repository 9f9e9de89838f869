"""Opening: what is on disk is looked into before it is read: whether it can be used at all, and how to read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from elastic.checkpoint.arrivals import DISK, Arrivals, Count, nowhere
from elastic.checkpoint.balanced import Gathered
from elastic.checkpoint.foreign import read_foreign
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.reading import begin_iteration, read_manifest, read_own_parts
from elastic.checkpoint.restoring import Attempt, Plan
from elastic.checkpoint.shards import size_bytes
from elastic.checkpoint.state import Captured, overwritable, prepare, wanted_cuts
from elastic.checkpoint.storage import Storage
from elastic.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A state that is known to fit and is still to be read. `manifest`: None where another system wrote it."""

    read: Callable[[], Captured]
    manifest: Manifest | None = None


def open_candidate(
    attempt: Attempt, plan: Plan, source: Storage, tracked: Mapping[str, Any], *, rank: int, arrivals: Arrivals
) -> Reading:  # fmt: skip
    """See that an iteration is there, and fits.

    Raises:
        CheckpointDamaged: it is not what the manifest says. CheckpointError: it does not fit.
    """
    directory, digest, weights_only = attempt.directory, attempt.manifest_digest, plan.weights_only
    if digest is None:
        if not weights_only:
            raise CheckpointError(
                "another system wrote it, and only its weights can be used here. Set checkpoint.no_load_optim: True"
            )

        def read_weights() -> Captured:
            count = arrivals.begin(DISK)
            captured = read_foreign(directory, storage=source)
            count(sum(map(size_bytes, captured.model.values())))
            return captured

        return Reading(read=read_weights)
    manifest = read_manifest(directory, storage=source, manifest_digest=digest)
    if not manifest.has_optimizer and not weights_only:
        raise CheckpointError(
            "it was saved with no_save_optim and holds weights only, so training cannot be continued from it. "
            "Set checkpoint.load_path to it, no_load_optim: True and another save_path to start from its weights."
        )
    # What all ranks read together has come to this one already, and was counted then.
    begin: Callable[[], Count] = partial(arrivals.begin, DISK)
    if isinstance(source, Gathered):
        begin = lambda: nowhere  # noqa: E731
    if cuts := wanted_cuts(manifest.values, tracked):

        def read_parts() -> Captured:
            count = begin()
            return read_own_parts(
                directory, manifest, storage=source, cuts=cuts, rank=rank, weights_only=weights_only, count=count
            )

        return Reading(read=read_parts, manifest=manifest)
    fits = partial(prepare, tracked=tracked, weights_only=weights_only)
    read = begin_iteration(directory, manifest, storage=source, weights_only=weights_only, fits=fits)
    live = partial(overwritable, tracked, weights_only=weights_only)
    return Reading(read=lambda: read(live(), begin()), manifest=manifest)
