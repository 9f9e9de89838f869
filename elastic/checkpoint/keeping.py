"""Making room: what becomes of iterations that are no longer wanted. Rank 0 only, and only after a commit."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from elastic.checkpoint.layout import MANIFEST, MAX_JSON_BYTES, aside_name, is_trash, iteration_dir, trash_name
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.policy import Found, retention
from elastic.checkpoint.storage import Storage
from elastic.checkpoint.survey import read_small, survey


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What retention did. `fault`: the committed iteration could not be read back, so nothing was deleted."""

    deleted: tuple[int, ...]
    reason: str
    fault: bool = False


def retain(
    root: str, *, committed: int, lineage: str, save_max: int, storage: Storage, nonce: Callable[[], str]
) -> Kept:
    """Delete what `save_max` leaves no room for, but only after the committed iteration was read back whole.

    Deleting is a rename first: a reader that has files open keeps them, and a death half way leaves a name that
    nobody takes for an iteration.

    Raises:
        OSError: from the storage.
    """
    for name in filter(is_trash, storage.names(root)):
        storage.remove_tree(os.path.join(root, name))
    seen = survey(root, storage=storage)
    tracked = () if seen.tracker.iteration is None else (seen.tracker.iteration,)
    chosen = retention(seen.found, save_max=save_max, committed=committed, lineage=lineage, protected=tracked)
    if not chosen.delete:
        return Kept(deleted=(), reason=chosen.reason)
    if (fault := read_back(os.path.join(root, iteration_dir(committed)), storage=storage)) is not None:
        return Kept(deleted=(), fault=True, reason=f"iteration {committed} was committed but {fault}: all stay")
    for each in chosen.delete:
        trash = os.path.join(root, trash_name(each.place, nonce=nonce()))
        storage.publish(os.path.join(root, each.place), trash)
        storage.remove_tree(trash)
    return Kept(deleted=tuple(each.iteration for each in chosen.delete), reason=chosen.reason)


def read_back(directory: str, *, storage: Storage) -> str | None:
    """Read every file of an iteration again; what is wrong with it, or None."""
    try:
        data = read_small(os.path.join(directory, MANIFEST), storage=storage, limit_bytes=MAX_JSON_BYTES)
        for name, facts in Manifest.from_bytes(data).files.items():
            if storage.facts(os.path.join(directory, name)) != facts:
                return f"{name} is not what was written"
    except (OSError, ValueError) as error:
        return f"cannot be read back: {error}"
    return None


def set_aside(root: str, found: tuple[Found, ...], *, storage: Storage, nonce: Callable[[], str]) -> tuple[str, ...]:
    """Move directories out of the way without losing them; gives their new names."""
    moved = []
    for each in found:
        name = aside_name(each.place, nonce=nonce())
        storage.publish(os.path.join(root, each.place), os.path.join(root, name))
        moved.append(name)
    return tuple(moved)
