"""Arrival: how an agent registers and learns the world, with one request where no answer is lost."""

from __future__ import annotations

from elastic.clock import Clock
from elastic.errors import StoreUnavailable
from elastic.rendezvous.keys import Keys
from elastic.rendezvous.kv import Transacted
from elastic.rendezvous.model import Phase, World
from elastic.rendezvous.registration import Registration
from elastic.rendezvous.world_watch import WorldWatch

_RETRY_S = 0.3


def arrive(registration: Registration, *, watch: WorldWatch, keys: Keys, clock: Clock, limit_s: float) -> int:
    """Write this agent's keys and read the world, trying again for `limit_s`.

    Returns the generation in which a job of this name was closed before, which this agent is to begin anew; 0: none.

    Raises:
        StoreUnavailable: no endpoint answered for so long. StoreRefused: wrong credentials.
    """
    world = _first_world(registration, watch=watch, keys=keys, clock=clock, limit_s=limit_s)
    if world is None or world.phase is not Phase.CLOSED:
        return 0
    registration.note(seen_closed=world.generation)
    return world.generation


def _first_world(
    registration: Registration, *, watch: WorldWatch, keys: Keys, clock: Clock, limit_s: float
) -> World | None:
    deadline_s = clock.monotonic_s() + limit_s
    done: Transacted | None = None
    while True:
        try:
            done = done or registration.start()
            if keys.world in done.read:
                return watch.take(done.read[keys.world], revision=done.revision)
            return watch.read()
        except StoreUnavailable:
            if clock.monotonic_s() >= deadline_s:
                raise
            clock.sleep(_RETRY_S)
