"""Tracker: the one file that names the last iteration for readers that know no record. It never moves back.

Whoever was paused after its commit may come to write it when others have gone on. So it looks for a later
generation's iteration before it writes, and once more after: a pause in between is made good by the one that it held.
"""

from __future__ import annotations

import os

from elastic.checkpoint.layout import TRACKER, build_tracker, parse_iteration_dir
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.storage import Storage
from elastic.checkpoint.survey import judge
from elastic.errors import Fenced


def follow(root: str, manifest: Manifest, *, storage: Storage) -> None:
    """Have the tracker name this iteration.

    Raises:
        Fenced: a later generation has gone on from it; the tracker says what it should. OSError: it cannot be written.
    """
    later = _later(root, manifest, storage)
    if later is None:
        _write(root, manifest.iteration, storage)
        later = _later(root, manifest, storage)
        if later is None:
            return
        _write(root, later, storage)
    raise Fenced(f"a later generation than {manifest.generation} has saved iteration {later} since")


def _later(root: str, manifest: Manifest, storage: Storage) -> int | None:
    """The newest whole iteration that a later generation saved in this lineage."""
    numbers = ((parse_iteration_dir(name), name) for name in storage.names(root))
    newer = sorted((number, name) for number, name in numbers if number is not None and number > manifest.iteration)
    for number, name in reversed(newer):
        found = judge(root, name, iteration=number, storage=storage)
        if found.problem is None and found.lineage == manifest.lineage and found.generation > manifest.generation:
            return number
    return None


def _write(root: str, iteration: int, storage: Storage) -> None:
    storage.replace(os.path.join(root, TRACKER), build_tracker(iteration))
