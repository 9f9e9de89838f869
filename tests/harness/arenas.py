"""The memory that an agent would lend a worker, as files of a directory: a node's, which a test can take away."""

from __future__ import annotations

from pathlib import Path

from elastic.checkpoint.memory import MemoryTier, Places
from elastic.checkpoint.room import Room

PLENTY = Room(available_bytes=1 << 40, cgroup_bytes=None)
KINDS = ("own0", "own1", "guest0", "guest1")


def two_arenas(directory: Path) -> Places:
    """Of a worker alone on its node."""
    paths = [directory / name for name in ("own0", "own1")]
    for path in paths:
        path.touch()
    return Places(own=(str(paths[0]), str(paths[1])))


def open_node(
    root: Path, node: str, *, slot: int = 0, slots: int = 1, guests: bool = True, room: Room = PLENTY
) -> MemoryTier:
    """The tier of one worker of a node: two arenas of its own, two for guests."""
    directory = root / node
    directory.mkdir(exist_ok=True, parents=True)
    paths = [directory / f"{each}{kind}" for each in range(slots) for kind in KINDS]
    for path in paths:
        path.touch()
    names = list(map(str, paths))
    at = len(KINDS) * slot
    own, lent = names[at : at + 2], names[at + 2 : at + 4]
    places = Places(
        own=(own[0], own[1]),
        others=tuple(each for each in names if each not in own),
        whole=slot == 0,
        guests=tuple(lent) if guests else (),
        node=node,
    )
    return MemoryTier(places, room=lambda: room)
