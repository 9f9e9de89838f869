"""Commits: the record of the last commit, written only by the newest generation's live members.

A check before a write can be outrun by a process that was paused in between; a compare-and-set cannot.
"""

from __future__ import annotations

from collections.abc import Callable

from elastic.clock import Clock
from elastic.errors import StoreError
from elastic.failpoint import failpoint
from elastic.rendezvous.fences import commit_fence
from elastic.rendezvous.keys import Keys
from elastic.rendezvous.kv import KeyValueStore, Put
from elastic.rendezvous.membership import CommitVerdict
from elastic.rendezvous.model import World

_RETRY_S = 0.3


class Commits:
    """Writes and reads the commit key for one agent. What it holds is opaque here."""

    def __init__(
        self, store: KeyValueStore, *, keys: Keys, agent: str, clock: Clock, on_unknown: Callable[[], None]
    ) -> None:
        """`on_unknown`: called where the agent's own key is not there."""
        self._store, self._keys, self._agent, self._clock = store, keys, agent, clock
        self._on_unknown = on_unknown

    def write(self, value: str, *, world: World | None, timeout_s: float) -> CommitVerdict:
        """Write the record if this world is the newest one and the agent's member key is there.

        The revision is compared too: a request that was held up on its way and arrives late, after its sender gave it
        up, must not take the record back to what it was. Tried again while the store does not answer.
        """
        if world is None:
            return CommitVerdict(granted=False, reason="this agent has not joined a generation")
        deadline_s = self._clock.monotonic_s() + timeout_s
        failpoint("agent.commit")
        tried = False
        while True:
            try:
                entry = self._store.get(self._keys.commit)
                if tried and entry is not None and entry.value == value:
                    return CommitVerdict(
                        granted=True, reason=f"generation {world.generation} held; the answer came late"
                    )
                tried = True
                if self._put(value, world=world, revision=entry.mod_revision if entry else 0):
                    return CommitVerdict(granted=True, reason=f"generation {world.generation} holds")
                if (refused := self._refused(world)) is not None:
                    return refused
            except StoreError as error:
                if self._clock.monotonic_s() >= deadline_s:
                    return CommitVerdict(granted=False, reason=f"the store did not confirm the commit: {error}")
                self._clock.sleep(_RETRY_S)

    def _put(self, value: str, *, world: World, revision: int) -> bool:
        fence = commit_fence(self._keys, agent=self._agent, token=world.token, revision=revision)
        return self._store.transact(fence, ops=[Put(self._keys.commit, value)]).succeeded

    def read(self) -> str | None:
        """The last record, None before the first. Raises StoreUnavailable."""
        entry = self._store.get(self._keys.commit)
        return entry.value if entry else None

    def _refused(self, world: World) -> CommitVerdict | None:
        """Why it was; None where nothing but the record itself had changed, so that it may be tried again."""
        entry = self._store.get(self._keys.generation)
        newest = entry.value if entry else "none"
        if newest != world.token:
            # Without the key the store has lost its data; the agents will agree anew, and nobody is ahead of us.
            newest = newest.partition(".")[0]
            reason = f"this agent belongs to generation {world.generation}, the newest is {newest}"
            return CommitVerdict(granted=False, reason=reason, stale=entry is not None)
        if self._store.get(self._keys.member(self._agent)) is None:
            self._on_unknown()
            return CommitVerdict(
                granted=False, reason=f"the lease of this agent has ended in generation {world.generation}"
            )
        return None
