"""Wish watch: what the leader knows of a person's wish, and that each one gets into the events."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections import deque
from collections.abc import Callable

from elastic.errors import StoreError
from elastic.events import Emit, WishHeard
from elastic.rendezvous.keys import Keys
from elastic.rendezvous.kv import Entry, KeyValueStore, Put, Update, Watch, modified_at
from elastic.rendezvous.wish import NO_WISH, Wish, wish_from_json, wish_to_json

_log = logging.getLogger(__name__)


def wished_now(store: KeyValueStore, *, keys: Keys) -> Wish:
    """What a person wants, for an agent that is about to tell why it gives up. Raises StoreError."""
    found = store.get(keys.wish)
    return wish_from_json(found.value) if found else NO_WISH


class WishWatch:
    """For one term. `on_change` is called from the watch's thread; `tell` belongs to the leader's."""

    def __init__(self, store: KeyValueStore, *, keys: Keys, emit: Emit, on_change: Callable[[], None]) -> None:
        self._store, self._key, self._emit, self._on_change = store, keys.wish, emit, on_change
        self._lock = threading.Lock()
        self._untold: deque[tuple[Wish, Entry]] = deque()
        self._wish: Wish | None = None
        self._watch: Watch | None = None

    @property
    def wish(self) -> Wish | None:
        """The newest one; None before anything is known."""
        return self._wish

    def start(self) -> None:
        """Begin to watch."""
        self._watch = self._store.watch(self._key, on_update=self._on_update, on_break=lambda _reason: None)

    def stop(self) -> None:
        """End the watch."""
        if self._watch is not None:
            self._watch.cancel()

    def tell(self) -> None:
        """Emit what is new, and note that it was told, so that the next leader does not tell it again."""
        while self._untold:
            with self._lock:
                wish, entry = self._untold.popleft()
            self._emit(
                WishHeard(what=wish.what, min_nodes=wish.min_nodes, max_nodes=wish.max_nodes, reason=wish.reason)
            )
            text = wish_to_json(dataclasses.replace(wish, told=True))
            with contextlib.suppress(StoreError):  # It may be told twice; it must not be lost.
                self._store.transact([modified_at(entry.key, entry.mod_revision)], ops=[Put(entry.key, text)])

    def _on_update(self, update: Update) -> None:
        with self._lock:
            if update.reset or update.deleted:
                self._wish = NO_WISH
            for entry in update.entries:
                self._read(entry)
        self._on_change()

    def _read(self, entry: Entry) -> None:
        try:
            self._wish = wish_from_json(entry.value)
        except StoreError as error:
            _log.warning("%s", error)
            self._wish = self._wish or NO_WISH
            return
        if not self._wish.told:
            self._untold.append((self._wish, entry))
