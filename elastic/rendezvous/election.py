"""Election: who leads, in one thread of each agent. The holder of the oldest candidate key leads.

Every other candidate watches only the one before it. An agent that waits for a leader that does nothing may suspect
it: the leader and the predecessor are probed, and those that are dead lose their lease at once, not when it runs out.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from elastic.errors import StoreError
from elastic.rendezvous.keys import Keys
from elastic.rendezvous.kv import Entry, KeyValueStore, Update, Watch
from elastic.rendezvous.model import ProbeResult, member_from_json
from elastic.rendezvous.probe import Target, probe_all

_log = logging.getLogger(__name__)
_RETRY_S = 0.3


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where this agent's candidate key stands: the keys before it, oldest first. None before it: it leads."""

    own: Entry
    before: tuple[Entry, ...]


class Election:
    """Stands for leader until stopped; calls `lead` while elected.

    `lead(own)` runs in the election's thread and returns when it finds that it leads no more, or should look again.
    """

    def __init__(self, store: KeyValueStore, *, keys: Keys, agent: str, lead: Callable[[Entry], None]) -> None:
        self._store, self._keys, self._agent, self._lead = store, keys, agent, lead
        self._wake = threading.Event()
        self._suspects = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="elastic-election", daemon=True)
        self.is_leader = False

    def start(self) -> None:
        """Begin to stand."""
        self._thread.start()

    def stop(self) -> None:
        """Stand no more; returns when the thread has ended."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def stand_again(self) -> None:
        """This agent's candidate key was written anew: look where it stands."""
        self._wake.set()

    def suspect(self) -> None:
        """Ask whether those before this agent are alive. Returns at once; the thread asks."""
        if not self.is_leader:
            self._suspects = True
            self._wake.set()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            try:
                standing = self._stand()
                if standing is None:
                    self._wake.wait(_RETRY_S)
                elif standing.before:
                    self._follow(standing)
                else:
                    self._rule(standing.own)
            except StoreError as error:
                _log.warning("election: %s", error)
                self._wake.wait(_RETRY_S)

    def _stand(self) -> Standing | None:
        entries = sorted(self._store.range(self._keys.candidates).entries, key=lambda entry: entry.create_revision)
        own_key = self._keys.candidate(self._agent)
        own = next((entry for entry in entries if entry.key == own_key), None)
        if own is None:
            return None
        before = tuple(entry for entry in entries if entry.create_revision < own.create_revision)
        return Standing(own=own, before=before)

    def _rule(self, own: Entry) -> None:
        self.is_leader = True
        try:
            self._lead(own)
        finally:
            self.is_leader = False

    def _follow(self, standing: Standing) -> None:
        """Wait until the predecessor is gone or somebody asks for a look."""
        predecessor = standing.before[-1]
        if self._suspects:
            self._suspects = False
            if self._unseat_the_dead({entry.key: entry for entry in (standing.before[0], predecessor)}):
                return
        gone = threading.Event()

        def on_update(update: Update) -> None:
            if predecessor.key in update.deleted or (update.reset and not update.entries):
                gone.set()
                self._wake.set()

        watch: Watch = self._store.watch(predecessor.key, on_update=on_update, on_break=lambda _reason: None)
        try:
            self._wake.wait()
        finally:
            watch.cancel()

    def _unseat_the_dead(self, entries: dict[str, Entry]) -> bool:
        """Revoke the leases of those that do not answer; whether there was one."""
        targets: dict[str, Target] = {}
        leases: dict[str, int] = {}
        for entry in entries.values():
            agent = entry.key.removeprefix(self._keys.candidates)
            found = self._store.get(self._keys.member(agent))
            if found is not None:
                member = member_from_json(found.value)
                targets[agent] = Target(address=member.address, port=member.probe_port)
                leases[agent] = entry.lease
        dead = {agent: result for agent, result in probe_all(targets).items() if result is not ProbeResult.ALIVE}
        for agent, result in dead.items():
            _log.warning("the agent %s before this one in the election is %s: its lease is revoked", agent, result)
            self._store.revoke(leases[agent])
        return bool(dead)
