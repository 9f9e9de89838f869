"""Making room: what becomes of iterations that are no longer wanted. Rank 0 only, and only after a commit."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass

from elastic.checkpoint.layout import (
    MANIFEST,
    MAX_JSON_BYTES,
    CommitRecord,
    aside_name,
    is_spare,
    is_trash,
    iteration_dir,
    parse_trash_name,
    spare_name,
    trash_name,
)
from elastic.checkpoint.manifest import Manifest, digest
from elastic.checkpoint.policy import Found, retention
from elastic.checkpoint.storage import LARGE_BYTES, Recycler, Storage
from elastic.checkpoint.survey import read_small, survey


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What retention did. `fault`: the committed iteration could not be read back, so nothing was deleted."""

    deleted: tuple[int, ...]
    reason: str
    fault: bool = False


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What there is to delete. `trash` was renamed earlier, `delete` will be now."""

    manifest_digest: str
    delete: tuple[Found, ...]
    trash: tuple[str, ...]
    reason: str
    fault: bool = False


def choose(
    root: str, *, committed: int, manifest_digest: str, lineage: str, save_max: int, storage: Storage,
    keep_every_steps: int = 0,
) -> Chosen:  # fmt: skip
    """Choose what `save_max` leaves no room for, but only after the committed iteration was read back whole.

    It reads all of it, which takes its time, and changes nothing.

    Raises:
        OSError: from the storage.
    """
    # Found before the committed one is read back: what others move there meanwhile is not ours to unlink.
    seen = survey(root, storage=storage)
    trash = [each for each in seen.found if is_trash(each.place) and each.manifest_digest != manifest_digest]
    tracked = () if seen.tracker.iteration is None else (seen.tracker.iteration,)
    chosen = retention(
        seen.found, save_max=save_max, committed=committed, lineage=lineage, protected=tracked,
        keep_every_steps=keep_every_steps,
    )  # fmt: skip
    nothing = Chosen(manifest_digest=manifest_digest, delete=(), trash=(), reason=chosen.reason)
    if not chosen.delete and not trash:
        return nothing
    place = os.path.join(root, iteration_dir(committed))
    if (fault := read_back(place, storage=storage, manifest_digest=manifest_digest)) is not None:
        reason = f"iteration {committed} was committed but {fault}: all stay"
        return dataclasses.replace(nothing, fault=True, reason=reason)
    return dataclasses.replace(nothing, delete=chosen.delete, trash=tuple(each.place for each in trash))


def make_room(
    root: str, chosen: Chosen, *, storage: Storage, record: Callable[[], CommitRecord | None],
    nonce: Callable[[], str], generation: int,
) -> Kept:  # fmt: skip
    """Delete what was chosen, if what was committed then still is what was committed last.

    `generation`: the caller's. What it has committed since, known to it or not yet, leaves the choice as it was.

    Deleting is a rename first; what was renamed is given up after the next commit: the save after that writes over the
    files, which takes half the time of making new ones, or they are unlinked. So a reader that has files open
    keeps them, and a process that slept between its commit and this, and knows nothing of later ones, costs nothing:
    the committed iteration is found by its digest under any name.

    Raises:
        OSError: from the storage.
    """
    if not chosen.delete and not chosen.trash:
        return Kept(deleted=(), reason=chosen.reason, fault=chosen.fault)
    now = record()
    if now is not None and now.manifest_digest != chosen.manifest_digest and now.generation != generation:
        return Kept(deleted=(), reason=f"iteration {now.iteration} was committed since: its writer makes room, not we")
    for each in (*filter(is_spare, storage.names(root)), *chosen.trash[1:]):
        storage.remove_tree(os.path.join(root, each))
    for each in chosen.trash[:1]:
        place = os.path.join(root, each)
        if isinstance(storage, Recycler) and _is_large(place, storage):
            name = spare_name(f"iteration_{parse_trash_name(each) or 0:08d}", nonce=nonce())
            storage.publish(place, os.path.join(root, name))
        else:
            storage.remove_tree(place)
    for found in chosen.delete:
        name = trash_name(found.place, nonce=nonce())
        storage.publish(os.path.join(root, found.place), os.path.join(root, name))
    return Kept(deleted=tuple(found.iteration for found in chosen.delete), reason=chosen.reason)


def _is_large(place: str, storage: Storage) -> bool:
    return any((storage.size_bytes(os.path.join(place, name)) or 0) >= LARGE_BYTES for name in storage.names(place))


def read_back(directory: str, *, storage: Storage, manifest_digest: str | None = None) -> str | None:
    """Read every file of an iteration again; what is wrong with it, or None."""
    try:
        data = read_small(os.path.join(directory, MANIFEST), storage=storage, limit_bytes=MAX_JSON_BYTES)
        if manifest_digest is not None and digest(data) != manifest_digest:
            return f"another one is in its place now ({MANIFEST} differs)"
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
