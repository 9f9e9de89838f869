"""Watched: from when on this worker's agent sees what it does, and can have its stacks."""

from __future__ import annotations

from elastic import stacks
from elastic.activity import Activity, Doing
from elastic.world import World


def watch(world: World) -> None:
    """Begin to be watched, where there is an agent of ours."""
    if world.watched_by is not None:
        stacks.offer(world.watched_by[1])
        Activity.of(world).begin(Doing.STARTING)
