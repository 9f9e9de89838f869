"""Ahead: what a job is given for its world while it is built before there is one, as on a node that comes to others.

Its model must not depend on rank or world size in any case, since these change while it lives.
"""

from __future__ import annotations

from typing import Any

from elastic.errors import PlaceUnknown
from elastic.world import World

UNKNOWN = frozenset({"rank", "size", "generation"})


class WorldToCome:
    """Stands for the World: tells what this node knows already, and all of it once there is a place."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._asked = ""

    def __getattr__(self, name: str) -> Any:
        """Raises PlaceUnknown."""
        if name.startswith("_"):
            raise AttributeError(name)  # what copy and pickle look for before there is a world in here
        if name in UNKNOWN and not self._world.placed:
            self._asked = name
            self.check()
        return getattr(self._world, name)

    def check(self) -> None:
        """Raises PlaceUnknown where something was asked in vain, whatever became of that."""
        if self._asked:
            raise PlaceUnknown(f"the job asked for its world's {self._asked} while it was built")

    def come(self, world: World) -> None:
        """There is a place from here on."""
        self._world = world
