"""Election: who leads. The holder of the oldest candidate key does; every other one watches only the one before it.

Who that is came with the answer to the registration, so that a start costs each agent one watch, whatever their
number. A thread runs only while there is something to find out, or while this agent leads. An agent that waits for a
leader that does nothing may suspect it: the leader and the predecessor are probed, and one that is dead loses its lease
at once, not when it runs out. A port that refuses is proof enough. Silence is not, since only the way to it may be
cut: a silent leader is challenged through the store, and unseated if it does not answer there either.
"""

from __future__ import annotations

import logging
import threading
import uuid
import zlib
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
# How many agents, about, ask after the leader at a time; the others only after their predecessor.
_ASK_THE_LEADER = 32


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where this agent's candidate key stands: the keys before it, oldest first. None before it: it leads."""

    own: Entry
    before: tuple[Entry, ...]
    revision: int


class Election:
    """Stands for leader until stopped; calls `lead` while elected.

    `lead(own)` runs in the election's thread and returns when it finds that it leads no more, or should look again.
    """

    def __init__(self, store: KeyValueStore, *, keys: Keys, agent: str, lead: Callable[[Entry], None]) -> None:
        self._store, self._keys, self._agent, self._lead = store, keys, agent, lead
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._watch: Watch | None = None
        self._predecessor: str | None = None
        self._after: Entry | None = None
        self._looks = self._suspects = self._suspects_leader = False
        self._started = self._stopping = False
        self._silent: frozenset[str] = frozenset()
        self._asked = zlib.crc32(agent.encode())
        self.is_leader = False

    def start(self) -> None:
        """Begin to stand."""
        self._started = True
        self._stand_after(self._after)

    def stop(self) -> None:
        """Stand no more; returns when the thread has ended."""
        with self._lock:
            self._stopping = True
            thread, watch = self._thread, self._watch
            self._watch = None
        self._wake.set()
        if thread is not None:
            thread.join()
        if watch is not None:
            watch.cancel()

    def stand(self, *, after: Entry | None) -> None:
        """This agent's candidate key was written anew. `after`: what the key `last_candidate` said until then."""
        self._after = after
        if self._started:
            self._stand_after(after)

    def suspect(self, silent: Collection[str] = (), *, among: int) -> None:
        """Ask whether those before this agent are alive, `silent` ones not by a probe. Returns at once.

        `among`: how many agents there are; of very many, only some ask after the leader each time.
        """
        if not self.is_leader:
            self._silent = frozenset(silent)
            self._asked += 1
            self._suspects_leader |= self._asked % (1 + among // _ASK_THE_LEADER) == 0
            self._suspects = True
            self._look_again()

    def _stand_after(self, after: Entry | None) -> None:
        if after is None or after.value == self._agent:
            self._look_again()
        else:
            self._follow(self._keys.candidate(after.value), since=after.mod_revision)

    def _look_again(self) -> None:
        with self._lock:
            self._looks = True
            if self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._run, name="elastic-election", daemon=True)
                self._thread.start()
        self._wake.set()

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._stopping or not self._looks:
                    self._thread = None
                    return
                self._looks = False
                self._wake.clear()
            try:
                found = self._look()
            except StoreError as error:
                _log.warning("election: %s", error)
                found = False
            except Exception:  # noqa: BLE001 - a thread that ends would keep the lead, and nobody would decide any more
                _log.exception("election: a defect; it is tried again")
                found = False
            if not found:
                self._looks = True
                self._wake.wait(_RETRY_S)

    def _look(self) -> bool:
        """Find out who is before this agent, and what becomes of that; False: look again."""
        suspects, self._suspects = self._suspects, False
        leader_too, self._suspects_leader = self._suspects_leader, False
        if suspects and not leader_too and self._predecessor is not None:
            self._unseat_the_dead([self._predecessor], leader=None)
            return True
        standing = self._stand()
        if standing is None:
            return False
        if not standing.before:
            self._rule(standing.own)
            self._looks = True
            return True
        self._follow(standing.before[-1].key, since=standing.revision)
        if suspects:
            leader, predecessor = standing.before[0].key, standing.before[-1].key
            self._unseat_the_dead(dict.fromkeys((leader, predecessor)), leader=leader)
        return True

    def _stand(self) -> Standing | None:
        snapshot = self._store.range(self._keys.candidates)
        entries = sorted(snapshot.entries, key=lambda entry: entry.create_revision)
        own_key = self._keys.candidate(self._agent)
        own = next((entry for entry in entries if entry.key == own_key), None)
        if own is None:
            return None
        before = tuple(entry for entry in entries if entry.create_revision < own.create_revision)
        return Standing(own=own, before=before, revision=snapshot.revision)

    def _rule(self, own: Entry) -> None:
        self.is_leader = True
        self._predecessor = None
        try:
            self._lead(own)
        finally:
            self.is_leader = False

    def _follow(self, key: str, *, since: int) -> None:
        """Look again when the predecessor's key, as it was at a revision, is gone."""

        def on_update(update: Update) -> None:
            kept = any(entry.create_revision <= since for entry in update.entries)
            if key in update.deleted or (update.reset and not kept):
                self._predecessor = None
                self._look_again()

        watch = self._store.watch(key, since=since, on_update=on_update, on_break=lambda _reason: None)
        with self._lock:
            old, self._watch = self._watch, watch
            self._predecessor = key
            if self._stopping:
                old, self._watch = watch, old
        if old is not None:
            old.cancel()

    def _unseat_the_dead(self, candidates: Collection[str], *, leader: str | None) -> None:
        """Revoke the leases of those that are dead; their successors hear of it, and go on asking."""
        leases: dict[str, int] = {}
        results = self._ask(candidates, leases=leases)
        dead = [candidate for candidate, result in results.items() if result is ProbeResult.REFUSED]
        if leader is not None and results.get(leader) is ProbeResult.SILENT and not self._answers():
            dead.append(leader)
        for candidate in dead:
            agent = self._agent_of(candidate)
            _log.warning(
                "the agent %s before this one in the election is %s: its lease is revoked", agent, results[candidate]
            )
            self._suspects = self._suspects_leader = True
            self._store.revoke(leases[candidate])

    def _agent_of(self, candidate: str) -> str:
        return candidate.removeprefix(self._keys.candidates)

    def _ask(self, candidates: Collection[str], *, leases: dict[str, int]) -> Mapping[str, ProbeResult]:
        """What a probe finds of each that has a key; its lease goes into `leases`."""
        silent, self._silent = self._silent, frozenset()
        targets: dict[str, Target] = {}
        results: dict[str, ProbeResult] = {}
        for candidate in candidates:
            agent = self._agent_of(candidate)
            if (found := self._store.get(self._keys.member(agent))) is None:
                continue
            leases[candidate] = found.lease
            if agent in silent:
                results[candidate] = ProbeResult.SILENT
            else:
                member = member_from_json(found.value)
                targets[agent] = Target(address=member.address, port=member.probe_port)
        probed = probe_all(targets)
        return results | {self._keys.candidate(agent): result for agent, result in probed.items()}

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
