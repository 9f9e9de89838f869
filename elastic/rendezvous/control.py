"""Control: a person's wish for a whole job is written, compared with what is there. Any machine that may can do it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from elastic.errors import StoreError, StoreUnavailable, UsageError
from elastic.rendezvous.keys import Keys
from elastic.rendezvous.kv import Entry, KeyValueStore, Put, modified_at
from elastic.rendezvous.model import Phase, World, world_from_json
from elastic.rendezvous.wish import NO_WISH, Wish, wish_from_json, wish_to_json

_TRIES = 10


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The world that a wish was written to, what was wished before, and what is now."""

    world: World
    before: Wish
    now: Wish


def ask(store: KeyValueStore, *, keys: Keys, change: Callable[[Wish], Wish]) -> Asked:
    """Write the changed wish. Who else writes at the same time is not overwritten.

    Raises:
        UsageError: there is no such job at work. StoreUnavailable, StoreRefused: nothing was written.
    """
    for _ in range(_TRIES):
        world, found = store.get(keys.world), store.get(keys.wish)
        agreed = world_from_json(world.value) if world is not None else None
        if world is None or agreed is None:
            raise UsageError(f"no generation of this job was ever agreed at {keys.root}: is it the right job and etcd?")
        if agreed.phase is Phase.CLOSED:
            raise UsageError(f"this job is over ({agreed.reason}): start it with what you want of it")
        before = _read(found)
        wish = change(before)
        # The world too: a job that ends meanwhile must not leave a wish to the one that is started after it.
        fence = [
            modified_at(keys.wish, found.mod_revision if found else 0),
            modified_at(keys.world, world.mod_revision),
        ]
        if store.transact(fence, ops=[Put(keys.wish, wish_to_json(wish))]).succeeded:
            return Asked(world=agreed, before=before, now=wish)
    raise StoreUnavailable(f"{keys.wish} or the world changes faster than it can be written; ask again")


def _read(found: Entry | None) -> Wish:
    """What is wished; what cannot be read is written over."""
    try:
        return wish_from_json(found.value) if found else NO_WISH
    except StoreError:
        return NO_WISH
