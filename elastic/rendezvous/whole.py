"""Whole: the large worlds that this agent knows with all of their seats, since it led when they were written or read.

A world is known by its token, which its members make: one that was proposed and never written does no harm.
"""

from __future__ import annotations

from elastic.rendezvous.model import Phase, World


class WholeWorlds:
    """The newest two, known from the leader's thread and asked for from any."""

    def __init__(self) -> None:
        self._worlds: tuple[World, ...] = ()

    def know(self, world: World) -> None:
        """A world with all of its seats. Only a large one that is formed is kept."""
        if world.apart is not None and world.phase is Phase.FORMED:
            self._worlds = (world, *(known for known in self._worlds if known.token != world.token))[:2]

    def like(self, world: World | None) -> World | None:
        """The same world with all of its seats, if it is known."""
        if world is None:
            return None
        if world.apart is None:
            return world
        return next((known for known in self._worlds if known.token == world.token), None)
