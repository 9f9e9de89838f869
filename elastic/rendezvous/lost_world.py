"""Lost world: the world that a store has lost with all its data is written again, so that training just goes on.

The members of a generation remember it. The agent of its first seat writes it anew as soon as all of them have
written their keys again and none of them knows a newer one. A large world is written by who led when it was formed, or
since, and so knows all of its seats, spare or member. Until then, and for a while at most, losing it is no reason to
stop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elastic.clock import Clock
from elastic.rendezvous.apart import parts_of
from elastic.rendezvous.fences import restore_fence, world_write
from elastic.rendezvous.keys import Keys
from elastic.rendezvous.kv import KeyValueStore
from elastic.rendezvous.model import Member, Phase, World, member_from_json, world_to_json
from elastic.rendezvous.whole import WholeWorlds

_log = logging.getLogger(__name__)
_LOST_S = 5.0
_MOST_NAMED = 8


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
        more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        return Restorable(verdict=False, reason=f"not here yet: {', '.join(missing[:_MOST_NAMED])}{more}")
    ahead = max(member.last_generation for member in members)
    if ahead > world.generation:
        return Restorable(verdict=False, reason=f"generation {ahead} is known, newer than {world.generation}")
    return Restorable(verdict=True, reason=f"all members of generation {world.generation} are here")


class LostWorld:
    """What one agent does about it. `lost` and `found` may be called from any thread."""

    def __init__(
        self, store: KeyValueStore, *, keys: Keys, agent: str, ttl_s: int, clock: Clock, whole: WholeWorlds
    ) -> None:
        self._store, self._keys, self._agent, self._clock = store, keys, agent, clock
        # All members of a lost world have written their keys again by then, or will not.
        self._limit_s = 2.0 * ttl_s + _LOST_S
        self._whole = whole
        self._joined: World | None = None
        self._seen: World | None = None
        self._since_s: float | None = None

    def remember(self, world: World) -> None:
        """This agent has joined a generation."""
        self._joined = world

    def lost(self) -> bool:
        """The store holds no world. Whether this agent remembers one."""
        if self._newest is None:
            return False
        if self._since_s is None:
            self._since_s = self._clock.monotonic_s()
        return True

    def found(self, world: World) -> None:
        """The store holds this one."""
        self._since_s = None
        if world.apart is not None and world.phase is Phase.FORMED:
            self._seen = world

    @property
    def _newest(self) -> World | None:
        """The newest that this agent has joined, or of large ones seen: who leads may be a spare."""
        known = [world for world in (self._joined, self._seen) if world is not None]
        return max(known, key=lambda world: world.generation, default=None)

    @property
    def given_up(self) -> bool:
        """Whether it has been lost for so long that this generation is over."""
        since_s = self._since_s
        return since_s is not None and self._clock.monotonic_s() >= since_s + self._limit_s

    def mend(self, tell: Callable[[], None]) -> bool:
        """Write it again if that is this agent's part and may be. `tell` is called when there is no hope any more.

        Called after each renewal of the lease; whether to be called again soon. Raises StoreError.
        """
        if self._since_s is None:
            return False
        if self.given_up:
            tell()
            return False
        world = self._whole.like(self._newest)
        if world is not None and (world.apart is not None or world.seats[0].agent == self._agent):
            self._restore(world)
        return True

    def _restore(self, world: World) -> None:
        entries = self._store.range(self._keys.members).entries
        may = restorable(world, members=[member_from_json(entry.value) for entry in entries])
        if not may.verdict:
            _log.debug("the lost world is not written again yet: %s", may.reason)
            return
        parts = parts_of(world) if world.apart is not None else {}
        ops = world_write(self._keys, text=world_to_json(world), formed=world.token, parts=parts)
        if self._store.transact(restore_fence(self._keys), ops=ops).succeeded:
            _log.warning("the store had lost this job's world; it is written again: %s", may.reason)
