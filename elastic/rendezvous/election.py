"""Election: who leads, in one thread of each agent. The holder of the oldest candidate key leads.

Every other candidate watches only the one before it. An agent that waits for a leader that does nothing may suspect
it: the leader and the predecessor are probed, and one that is dead loses its lease at once, not when it runs out. A
port that refuses is proof enough. Silence is not, since only the way to it may be cut: a silent leader is challenged
through the store, and unseated if it does not answer there either.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from elastic.errors import StoreError
from elastic.rendezvous.keys import Keys
from elastic.rendezvous.kv import Entry, KeyValueStore, Update, Watch
from elastic.rendezvous.model import ProbeResult, member_from_json
from elastic.rendezvous.probe import Target, probe_all

_log = logging.getLogger(__name__)
_RETRY_S = 0.3
_ANSWER_S = 0.3


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
        self._silent: frozenset[str] = frozenset()
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

    def suspect(self, silent: Collection[str] = ()) -> None:
        """Ask whether those before this agent are alive, `silent` ones not by a probe. Returns at once."""
        if not self.is_leader:
            self._silent = frozenset(silent)
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
            if self._unseat_the_dead(standing):
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

    def _unseat_the_dead(self, standing: Standing) -> bool:
        """Revoke the leases of those that are dead; whether there was one."""
        leader, predecessor = standing.before[0], standing.before[-1]
        leases = {self._agent_of(entry): entry.lease for entry in (leader, predecessor)}
        results = self._ask(leases)
        dead = [agent for agent, result in results.items() if result is ProbeResult.REFUSED]
        head = self._agent_of(leader)
        if results.get(head) is ProbeResult.SILENT and not self._answers():
            dead.append(head)
        for agent in dead:
            _log.warning(
                "the agent %s before this one in the election is %s: its lease is revoked", agent, results[agent]
            )
            self._store.revoke(leases[agent])
        return bool(dead)

    def _agent_of(self, candidate: Entry) -> str:
        return candidate.key.removeprefix(self._keys.candidates)

    def _ask(self, agents: Collection[str]) -> Mapping[str, ProbeResult]:
        """What a probe finds of each; of one that has no key, nothing."""
        silent, self._silent = self._silent, frozenset()
        targets: dict[str, Target] = {}
        for agent in agents:
            if agent not in silent and (found := self._store.get(self._keys.member(agent))) is not None:
                member = member_from_json(found.value)
                targets[agent] = Target(address=member.address, port=member.probe_port)
        return probe_all(targets) | {agent: ProbeResult.SILENT for agent in agents if agent in silent}

    def _answers(self) -> bool:
        """Whether the leader answers through the store. Another's challenge does as well as ours."""
        answered = threading.Event()
        nonce = uuid.uuid4().hex

        def on_update(update: Update) -> None:
            if update.entries and (not update.reset or update.entries[-1].value == nonce):
                answered.set()

        watch = self._store.watch(self._keys.answer, on_update=on_update, on_break=lambda _reason: None)
        try:
            self._store.put(self._keys.challenge, nonce)
            return answered.wait(_ANSWER_S)
        finally:
            watch.cancel()
