"""The memory tier of this worker: the arenas that its agent lends it, or its own for the save under way."""

from __future__ import annotations

from elastic.checkpoint.memory import MemoryTier, Places
from elastic.config.choices import SaveMode
from elastic.config.model import CheckpointSettings
from elastic.distributed.side_stream import SideStream
from elastic.events import Emit, Notice
from elastic.world import ARENAS_EACH, World


def open_memory(world: World, settings: CheckpointSettings, *, emit: Emit) -> MemoryTier | None:
    """The tier; None where nothing is to be copied, or where the agent's memory cannot be reached."""
    lent = _lent(world) if settings.memory_every_steps or settings.save_mode is SaveMode.ASYNC else None
    if not settings.enable_save or (lent is None and settings.save_mode is SaveMode.SYNC):
        return None
    try:
        return MemoryTier(lent, copier=None if world.device == "cpu" else SideStream())
    except OSError as error:
        # In a container of its own, say, where the agent's memory has no name.
        emit(Notice(text=f"no memory tier: what the agent keeps for it cannot be opened ({error})"))
        return None


def _lent(world: World) -> Places | None:
    own, guests = _pair(world, 0), _pair(world, 1)
    if len(own) < 2:
        return None
    return Places(
        own=(own[0], own[1]),
        others=tuple(each for each in world.arenas if each not in own),
        whole=world.local_rank == 0,
        workers=world.local_size,
        guests=guests,
        node=world.node,
    )


def _pair(world: World, which: int) -> tuple[str, ...]:
    at = ARENAS_EACH * world.local_rank + 2 * which
    return world.arenas[at : at + 2]
