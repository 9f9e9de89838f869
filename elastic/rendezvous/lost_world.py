"""Lost world: the world that a store has lost with all its data is written again, so that training just goes on.

The members of a generation remember it. The agent of its first seat writes it anew as soon as all of them have
written their keys again and none of them knows a newer one. Until then, and for a while at most, losing it is no
reason to stop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elastic.clock import Clock
from elastic.rendezvous.fences import restore_fence
from elastic.rendezvous.keys import Keys
from elastic.rendezvous.kv import KeyValueStore, Put
from elastic.rendezvous.model import Member, World, member_from_json, world_to_json

_log = logging.getLogger(__name__)
_LOST_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Restorable:
    """Whether a remembered world may be written again, and why."""

    verdict: bool
    reason: str


def restorable(world: World, *, members: Sequence[Member]) -> Restorable:
    """All of its members must be there, and none may know a newer generation: then nobody is ahead of it. Pure."""
    by_agent = {member.agent: member for member in members}
    missing = [seat.node for seat in world.seats if seat.agent not in by_agent]
    if missing:
        return Restorable(verdict=False, reason=f"not here yet: {', '.join(missing)}")
    ahead = max(member.last_generation for member in members)
    if ahead > world.generation:
        return Restorable(verdict=False, reason=f"generation {ahead} is known, newer than {world.generation}")
    return Restorable(verdict=True, reason=f"all members of generation {world.generation} are here")


class LostWorld:
    """What one agent does about it. `lost` and `found` may be called from any thread."""

    def __init__(self, store: KeyValueStore, *, keys: Keys, agent: str, ttl_s: int, clock: Clock) -> None:
        self._store, self._keys, self._agent, self._clock = store, keys, agent, clock
        # All members of a lost world have written their keys again by then, or will not.
        self._limit_s = 2.0 * ttl_s + _LOST_S
        self._world: World | None = None
        self._since_s: float | None = None

    def remember(self, world: World) -> None:
        """This agent has joined a generation. One whose seats are kept apart cannot be written again from memory."""
        self._world = world

    def lost(self) -> None:
        """The store holds no world."""
        if self._since_s is None and self._world is not None:
            self._since_s = self._clock.monotonic_s()

    def found(self) -> None:
        """The store holds one."""
        self._since_s = None

    @property
    def given_up(self) -> bool:
        """Whether it has been lost for so long that this generation is over, or cannot be mended at all."""
        if self._world is None or self._world.apart is not None:
            return True
        since_s = self._since_s
        return since_s is not None and self._clock.monotonic_s() >= since_s + self._limit_s

    def mend(self, tell: Callable[[], None]) -> bool:
        """Write it again if that is this agent's part and may be. `tell` is called when there is no hope any more.

        Called after each renewal of the lease; whether to be called again soon. Raises StoreError.
        """
        world = self._world
        if self._since_s is None or world is None:
            return False
        if self.given_up:
            tell()
            return False
        if world.apart is None and world.seats[0].agent == self._agent:
            # Of seats kept apart nobody remembers all: a large job forms a new generation.
            self._restore(world)
        return True

    def _restore(self, world: World) -> None:
        entries = self._store.range(self._keys.members).entries
        may = restorable(world, members=[member_from_json(entry.value) for entry in entries])
        if not may.verdict:
            _log.debug("the lost world is not written again yet: %s", may.reason)
            return
        ops = [Put(self._keys.world, world_to_json(world)), Put(self._keys.generation, world.token)]
        if self._store.transact(restore_fence(self._keys), ops=ops).succeeded:
            _log.warning("the store had lost this job's world; it is written again: %s", may.reason)
