"""Making room by hand: what may go from a root that nobody may be watching, and letting it go."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from elastic.checkpoint.keeping import read_back
from elastic.checkpoint.layout import MANIFEST, MAX_JSON_BYTES, is_trash, iteration_dir, parse_iteration_dir, trash_name
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.policy import Found, candidates, retention
from elastic.checkpoint.storage import Storage
from elastic.checkpoint.survey import read_small, survey
from elastic.errors import CheckpointDamaged, NothingToRestore


@dataclass(frozen=True, kw_only=True)
class Pruning:
    """What may be deleted, and why the rest may not."""

    delete: tuple[str, ...]
    keep: tuple[str, ...]
    reason: str


def plan_pruning(root: str, *, keep: int, storage: Storage) -> Pruning:
    """Choose what to delete so that `keep` iterations stay. The commit record is out of reach here, so anything that
    it may name stays: what the tracker names, all that is newer, and the newest that reads back whole.

    Raises:
        NothingToRestore: no tracker, so that nobody can say what was committed, or nothing of ours.
        CheckpointDamaged: no iteration reads back whole: nothing may go.
    """
    seen = survey(root, storage=storage)
    tracked = seen.tracker.iteration
    ours = {each.iteration: each for each in seen.in_place if each.lineage is not None}
    if tracked not in ours:
        raise NothingToRestore(f"{root}: {seen.tracker.reason}, so what was committed is not known: nothing is deleted")
    choice = candidates(None, tracker=tracked, found=seen.found)
    good = next((each.found for each in choice.candidates if _whole(root, each.found, storage)), None)
    if good is None:
        raise CheckpointDamaged(f"{root}: no iteration reads back whole: nothing is deleted")
    lineage = ours[tracked].lineage or ""
    protected = {tracked, good.iteration, *_milestones(root, tracked, ours.values(), storage)}
    chosen = retention(seen.found, save_max=keep, committed=tracked, lineage=lineage, protected=protected)
    places = [each.place for each in chosen.delete]
    # A process that slept may have moved there what has been committed since: only what is older for certain goes.
    oldest_safe = min(tracked, good.iteration)
    trash = [name for name in storage.names(root) if is_trash(name) and _is_older(name, oldest_safe)]
    stays = tuple(each.place for each in seen.found if each.place not in (*places, *trash))
    reason = f"{seen.tracker.reason}; {good.place} was read back whole; keeping {keep}"
    return Pruning(delete=(*places, *trash), keep=stays, reason=reason)


def prune(root: str, plan: Pruning, *, storage: Storage, nonce: Callable[[], str]) -> None:
    """Delete what was planned: first another name, then the files.

    Raises:
        OSError: from the storage.
    """
    for place in plan.delete:
        gone = os.path.join(root, place if is_trash(place) else trash_name(place, nonce=nonce()))
        if not is_trash(place):
            storage.publish(os.path.join(root, place), gone)
        storage.remove_tree(gone)


def _is_older(trash: str, oldest_safe: int) -> bool:
    iteration = parse_iteration_dir(trash.split("-")[1])
    return iteration is not None and iteration < oldest_safe


def _whole(root: str, found: Found, storage: Storage) -> bool:
    return found.lineage is not None and read_back(os.path.join(root, found.place), storage=storage) is None


def _milestones(root: str, tracked: int, ours: Iterable[Found], storage: Storage) -> set[int]:
    """Iterations that the run was told to keep for good."""
    path = os.path.join(root, iteration_dir(tracked), MANIFEST)
    try:
        manifest = Manifest.from_bytes(read_small(path, storage=storage, limit_bytes=MAX_JSON_BYTES))
    except (OSError, ValueError):
        return set()
    every = manifest.settings.get("checkpoint", {}).get("keep_every_steps", 0)
    if not isinstance(every, int) or every <= 0:
        return set()
    return {each.iteration for each in ours if each.iteration % every == 0}
