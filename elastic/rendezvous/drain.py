"""Drain: a person asks a node to leave, by a key that its agent watches.

The key bears the agent's own id and lives by its lease: it means one process and no other, and is gone with it, so
that a node that comes back under the same name is not sent away again.
"""

from __future__ import annotations

from collections.abc import Callable

from elastic.errors import UsageError
from elastic.rendezvous.errors import LeaseEnded
from elastic.rendezvous.keys import Keys
from elastic.rendezvous.kv import KeyValueStore, Update, Watch
from elastic.rendezvous.model import Member, MemberState, member_from_json


class DrainWatch:
    """Calls `on_drain` with the reason, once, from the watch's thread. `start` after the agent is registered."""

    def __init__(self, store: KeyValueStore, *, keys: Keys, agent: str, on_drain: Callable[[str], None]) -> None:
        self._store, self._key, self._on_drain = store, keys.drain(agent), on_drain
        self._watch: Watch | None = None
        self._heard = False

    def start(self) -> None:
        """Begin to watch."""
        self._watch = self._store.watch(self._key, on_update=self._on_update, on_break=lambda _reason: None)

    def stop(self) -> None:
        """End the watch."""
        if self._watch is not None:
            self._watch.cancel()

    def _on_update(self, update: Update) -> None:
        if update.entries and not self._heard:
            self._heard = True
            self._on_drain(update.entries[-1].value)


def drain(store: KeyValueStore, *, keys: Keys, node: str, reason: str) -> tuple[str, ...]:
    """Ask the agents of a node to leave; the ids of those that were asked.

    Raises:
        UsageError: no such node takes part in the job. StoreUnavailable, StoreRefused: nothing was asked, or not all.
    """
    members = [member_from_json(entry.value) for entry in store.range(keys.members).entries]
    asked = tuple(member.agent for member in members if member.node == node and _ask(store, keys, member, reason))
    if not asked:
        there = ", ".join(sorted({member.node for member in members})) or "none"
        raise UsageError(f"no node {node!r} takes part in this job; there are: {there}")
    return asked


def _ask(store: KeyValueStore, keys: Keys, member: Member, reason: str) -> bool:
    if member.state is MemberState.LEAVING:
        return True
    try:
        store.put(keys.drain(member.agent), reason, lease=member.lease)
    except LeaseEnded:
        return False  # it has just gone
    return True
