"""World watch: the newest world that this agent knows of, kept by a watch, for others to wait on."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable

from elastic.errors import StoreError
from elastic.rendezvous.apart import Part, all_of, moved, part_from_json, part_of
from elastic.rendezvous.keys import Keys
from elastic.rendezvous.kv import Entry, KeyValueStore, Update, Watch
from elastic.rendezvous.model import Phase, Seat, World, world_from_json


class WorldWatch:
    """Reads without blocking; `on_change` is called from the watch's thread, without locks."""

    def __init__(self, store: KeyValueStore, *, keys: Keys, agent: str, on_change: Callable[[], None]) -> None:
        self._store, self._keys, self._agent, self._on_change = store, keys, agent, on_change
        self._key = keys.world
        self._part = Part(generation=0, seats=())
        self._changed = threading.Condition()
        self._watch: Watch | None = None
        self._since: int | None = None
        self._world: World | None = None
        self._unreadable: StoreError | None = None
        self.known = False
        self.revision = 0
        """When the newest world known was written."""

    @property
    def world(self) -> World | None:
        """The newest world known; None where the store holds none, or none is `known` yet.

        Of seats kept apart it holds this agent's own, as soon as that is known.
        """
        return self._world

    def neighbours(self, world: World) -> tuple[Seat, ...]:
        """The seats of a world that this agent knows, in rank order: of a large one those of its part."""
        part = self._part
        if world.apart is None or part.generation != world.apart.generation:
            return world.seats
        return all_of(part)

    @property
    def looks_apart(self) -> bool:
        """Whether this agent's seat is to be looked for with `look`."""
        world = self._world
        return (
            world is not None
            and world.apart is not None
            and world.phase is Phase.FORMED
            and world.apart.generation != self._part.generation
        )

    def look(self) -> None:
        """Read the part of the seats that this agent's own is in, if need be. Raises StoreError."""
        world = self._world
        if not self.looks_apart or world is None or world.apart is None:
            return
        found = self._store.get(self._keys.part(part_of(self._agent, parts=world.apart.parts)))
        if (
            found is None
            or (part := part_from_json(found.value, agent=self._agent)).generation != world.apart.generation
        ):
            return  # The world is not the newest any more: the watch will tell.
        with self._changed:
            if self._world is not None and self._world.apart is not None:
                self._part = part
                self._world = self._seated(self._world)

    def read(self) -> World | None:
        """Ask for the world now; `start` goes on from there. Raises StoreError."""
        snapshot = self._store.range(self._key)
        found = next((entry for entry in snapshot.entries if entry.key == self._key), None)
        return self.take(found, revision=snapshot.revision)

    def take(self, found: Entry | None, *, revision: int) -> World | None:
        """The world as it was read at a revision; `start` goes on from there. Raises StoreError."""
        self._since = revision
        entries = () if found is None else (found,)
        self._on_update(Update(entries=entries, revision=revision, reset=True))
        self.check()
        return self._world

    def start(self) -> None:
        """Begin to watch."""
        self._watch = self._store.watch(
            self._key, since=self._since, on_update=self._on_update, on_break=lambda _reason: None
        )

    def stop(self) -> None:
        """End the watch."""
        if self._watch is not None:
            self._watch.cancel()

    def check(self) -> None:
        """Raises StoreError where the world key holds something that is not a world."""
        if self._unreadable is not None:
            raise self._unreadable

    def wait(self, condition: Callable[[], object], *, timeout_s: float | None) -> None:
        """Return as soon as the condition holds, looking at each change, or after the time."""
        with self._changed:
            self._changed.wait_for(condition, timeout=timeout_s)

    def _on_update(self, update: Update) -> None:
        with self._changed:
            try:
                world = world_from_json(update.entries[-1].value) if update.entries else None
                self._world = self._seated(world) if world and world.apart else world
                self.revision = update.entries[-1].mod_revision if update.entries else 0
                self._unreadable = None
            except StoreError as error:
                self._unreadable = error
            self.known = True
            self._changed.notify_all()
        self._on_change()

    def _seated(self, world: World) -> World:
        """The world with this agent's seat, where that can be told from the seat it had."""
        assert world.apart is not None
        part = moved(self._part, to=world.apart)
        if part is None:
            return world
        self._part = part
        return dataclasses.replace(world, seats=part.seats)
