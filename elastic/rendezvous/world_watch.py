"""World watch: the newest world that this agent knows of, kept by a watch, for others to wait on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from elastic.errors import StoreError
from elastic.rendezvous.kv import KeyValueStore, Update, Watch
from elastic.rendezvous.model import World, world_from_json

_log = logging.getLogger(__name__)


class WorldWatch:
    """Reads without blocking; `on_change` is called from the watch's thread, without locks."""

    def __init__(self, store: KeyValueStore, *, key: str, on_change: Callable[[], None]) -> None:
        self._store, self._key, self._on_change = store, key, on_change
        self._changed = threading.Condition()
        self._watch: Watch | None = None
        self._since: int | None = None
        self._world: World | None = None
        self._unreadable: StoreError | None = None
        self.known = False

    @property
    def world(self) -> World | None:
        """The newest world known; None where the store holds none, or none is `known` yet."""
        return self._world

    def read(self) -> World | None:
        """Ask for the world now; `start` goes on from there. Raises StoreError."""
        snapshot = self._store.range(self._key)
        self._since = snapshot.revision
        entries = tuple(entry for entry in snapshot.entries if entry.key == self._key)
        self._on_update(Update(entries=entries, revision=snapshot.revision, reset=True))
        self.check()
        return self._world

    def start(self) -> None:
        """Begin to watch."""
        self._watch = self._store.watch(
            self._key, since=self._since, on_update=self._on_update, on_break=self._on_break
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
                self._world = world_from_json(update.entries[-1].value) if update.entries else None
                self._unreadable = None
            except StoreError as error:
                self._unreadable = error
            self.known = True
            self._changed.notify_all()
        self._on_change()

    def _on_break(self, reason: str) -> None:
        _log.info("the watch of the world broke (%s); it mends itself", reason)
