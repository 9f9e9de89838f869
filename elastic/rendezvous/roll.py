"""Roll: the members as the leader knows them, kept from a watch. Each change is read once, however many there are."""

from __future__ import annotations

import logging
import threading

from elastic.errors import StoreError
from elastic.rendezvous.kv import Entry, Update
from elastic.rendezvous.model import Member, member_from_json

_log = logging.getLogger(__name__)


class Roll:
    """`note` is called by a watch, `members` by the leader; what was noted is read when it is asked for."""

    def __init__(self, *, prefix: str) -> None:
        self._prefix = prefix
        self._lock = threading.Lock()
        self._noted: list[Update] = []
        self._unread = 0
        self._members: dict[str, Member] | None = None

    def clear(self) -> None:
        """Know nothing."""
        with self._lock:
            self._noted, self._unread, self._members = [], 0, None

    def note(self, update: Update) -> None:
        """Something changed."""
        with self._lock:
            self._noted.append(update)
            self._unread += len(update.entries) + len(update.deleted) + update.reset

    @property
    def unread(self) -> int:
        """How many changes were noted since `members` was last asked for."""
        return self._unread

    def members(self) -> dict[str, Member] | None:
        """All members by agent, for the caller to keep; None as long as nothing is known."""
        with self._lock:
            noted, self._noted, self._unread = self._noted, [], 0
        for update in noted:
            self._apply(update)
        return None if self._members is None else dict(self._members)

    def _apply(self, update: Update) -> None:
        if update.reset or self._members is None:
            self._members = {}
        for key in update.deleted:
            self._members.pop(key.removeprefix(self._prefix), None)
        for entry in update.entries:
            self._read(entry, into=self._members)

    def _read(self, entry: Entry, *, into: dict[str, Member]) -> None:
        agent = entry.key.removeprefix(self._prefix)
        try:
            into[agent] = member_from_json(entry.value)
        except StoreError as error:
            into.pop(agent, None)
            _log.warning("%s is passed over: %s", entry.key, error)
