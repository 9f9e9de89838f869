"""Adoption: a save that is complete, but whose generation died before the commit, is finished by the next one.

So something becomes durable even when faults come more often than saves. Rank 0 only; what is adopted is verified by
all ranks as anything that is restored, and committed before anyone trains on from it.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from elastic.checkpoint.layout import CommitRecord, aside_name, iteration_dir, parse_temp_name
from elastic.checkpoint.policy import candidates
from elastic.checkpoint.storage import Storage
from elastic.checkpoint.survey import judge, survey


def publish_prepared(
    root: str, *, lineage: str, record: CommitRecord | None, generation: int, load_unhealthy: bool, storage: Storage,
    nonce: Callable[[], str],
) -> str | None:  # fmt: skip
    """Give the complete save that would be restored first, if it is still in its temporary directory, its real name.

    Returns that name, or None where nothing was to be done. A writer that sleeps in that directory can harm nothing:
    its own rename then finds nothing to rename.

    Raises:
        OSError: from the storage.
    """
    begun = [name for name in storage.names(root) if parse_temp_name(name) is not None]
    judged = [judge(root, name, iteration=None, storage=storage) for name in begun]
    complete = [each for each in judged if each.problem is None and each.lineage is not None]
    if not complete:
        return None
    seen = survey(root, storage=storage)
    choice = candidates(
        record,
        tracker=seen.tracker.iteration,
        found=(*seen.found, *complete),
        lineage=lineage,
        generation=generation,
        load_unhealthy=load_unhealthy,
    )
    first = choice.candidates[0].found if choice.candidates else None
    if first is None or first not in complete:
        return None
    place = iteration_dir(first.iteration)
    storage.sync_dir(os.path.join(root, first.place))
    if place in storage.names(root):
        storage.publish(os.path.join(root, place), os.path.join(root, aside_name(place, nonce=nonce())))
    storage.publish(os.path.join(root, first.place), os.path.join(root, place))
    storage.sync_dir(root)
    return place
