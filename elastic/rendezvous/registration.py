"""Registration: this agent's lease and the two keys that live by it, kept in the store by a thread.

If the lease ends (the store stood still, or somebody revoked it), the keys are written again under a new one; the
candidate key is then the youngest, so that a leader that lost its lease leads no more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable
from typing import Protocol

from elastic.clock import Clock
from elastic.errors import StoreError, StoreUnavailable
from elastic.lease import AGENT, LeasePage, certain_until_s
from elastic.rendezvous.errors import LeaseEnded
from elastic.rendezvous.keys import Keys
from elastic.rendezvous.kv import Entry, Get, KeyValueStore, Op, Put, Transacted, modified_at
from elastic.rendezvous.model import Member, member_to_json

_log = logging.getLogger(__name__)
_RETRY_S = 0.3
_WRITE_TRIES = 3


class Keeper(Protocol):
    """Renews a lease where no stall of this process reaches it."""

    def keep(self, lease: int) -> None:
        """See to this lease from now on. Called with each renewal here, so that it knows that this process moves."""
        ...

    def stop(self) -> None:
        """Renew no more."""
        ...


class Registration:
    """Holds what the member key should say and sees to it that it does. Safe to use from any thread.

    `on_registered` hears what the key `last_candidate` said until then, from the same transaction.
    """

    def __init__(
        self,
        store: KeyValueStore,
        *,
        keys: Keys,
        member: Member,
        ttl_s: int,
        clock: Clock,
        on_registered: Callable[[Entry | None], None],
        on_renewed: Callable[[], bool] = lambda: False,
        page: LeasePage | None = None,
        keeper: Keeper | None = None,
    ) -> None:
        """`on_renewed`: called from the thread after each renewal; whether the next should come soon.

        `page`: where workers read until when the lease holds. `keeper`: renews it too, whatever this process does.
        """
        self._store, self._keys, self._clock = store, keys, clock
        self._ttl_s = ttl_s
        self._page, self._keeper = page, keeper
        self._on_registered, self._on_renewed = on_registered, on_renewed
        self._member = member
        self._written: Member | None = None
        self._writing = threading.RLock()
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="elastic-lease", daemon=True)
        self._revision = 0
        self._asked = self._owes = False
        self.since_revision = 0
        """When this agent's keys were last written under a new lease: since then they are there."""
        self.valid_until_s = 0.0
        self.trouble: StoreUnavailable | None = None

    @property
    def member(self) -> Member:
        """What the member key should say."""
        return self._member

    def start(self) -> Transacted:
        """Take a lease, write the keys, keep them. The answer holds the world too, if it was not lost on its way.

        Raises:
            StoreUnavailable, StoreRefused: the store could not or would not.
        """
        with self._writing:
            done = self._register(Get(self._keys.world))
        self._thread.start()
        return done

    def stop(self, *, revoke: bool) -> None:
        """Keep the lease no more; revoke it, so that the keys are gone at once, or let it run out."""
        with self._writing:
            self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._keeper is not None:
            self._keeper.stop()
        if revoke and self._member.lease:
            with contextlib.suppress(StoreError):
                self._store.revoke(self._member.lease)

    def note(self, **fields: object) -> None:
        """Change what the key will say when it is next written; nobody waits for that."""
        with self._writing:
            self._member = dataclasses.replace(self._member, **fields)  # type: ignore[arg-type]  # names of Member

    def publish(self, **fields: object) -> None:
        """Change what the key says; if the store does not answer, the thread goes on trying. Nothing after `stop`.

        Where it says so already nothing is written.
        """
        with self._writing:
            if self._stopping:
                return
            self.note(**fields)
            if self._member == self._written:
                return
            self._owes = True
            try:
                self._write()
            except StoreError as error:
                self._note_trouble(error)
                self._wake.set()

    def say_soon(self, **fields: object) -> None:
        """Like `publish`, by the thread."""
        with self._writing:
            self.note(**fields)
            self._owes = True
        self._wake.set()

    def look(self) -> None:
        """Renew now rather than when it is due: something says that the store does not know this agent any more."""
        self._wake.set()

    def _run(self) -> None:
        pause_s = self._ttl_s / 3
        while not self._stopping:
            self._wake.wait(pause_s)
            self._wake.clear()
            if self._stopping:
                return
            self._tell_keeper()
            try:
                self._renew()
                pause_s = _RETRY_S if self._on_renewed() else self._ttl_s / 3
            except StoreError as error:
                self._note_trouble(error)
                pause_s = _RETRY_S
            except Exception:  # noqa: BLE001 - a thread that ends would let the lease end, and the node with it
                _log.exception("lease: a defect; it is tried again")
                pause_s = _RETRY_S

    def _tell_keeper(self) -> None:
        if self._keeper is None:
            return
        try:
            self._keeper.keep(self._member.lease)
        except Exception:  # noqa: BLE001 - what goes wrong with the other one must not end this one
            _log.exception("lease keeper: a defect; this agent renews its lease alone")

    def _renew(self) -> None:
        sent_s = self._clock.monotonic_s()
        lasts_s = self._store.keep_alive(self._member.lease)
        with self._writing:
            if self._stopping:
                return
            if lasts_s <= 0:
                _log.warning("the lease of this agent has ended; its keys are written again")
                if self._page is not None:
                    self._page.end()
                self._register()
                return
            self._renewed(sent_s=sent_s, lasts_s=lasts_s)
            if self._owes:
                self._write()

    def _write(self) -> None:
        member = self._member
        key = self._keys.member(member.agent)
        for _ in range(_WRITE_TRIES):
            try:
                put = Put(key, member_to_json(member), lease=member.lease)
                done = self._store.transact([modified_at(key, self._revision)], ops=[put])
            except LeaseEnded:
                self._register()
                return
            if done.succeeded:
                self._written, self._revision, self._owes = member, done.revision, False
                return
            self._revision = self._read_revision(key)
        raise StoreUnavailable(f"{key} changes faster than it can be written; no other agent should write it")

    def _register(self, *reads: Get) -> Transacted:
        """Both keys under a new lease. A request of an earlier try that arrives late changes nothing any more."""
        sent_s = self._clock.monotonic_s()
        lease = self._store.grant(self._ttl_s)
        member = dataclasses.replace(self._member, lease=lease)
        key, last = self._keys.member(member.agent), self._keys.last_candidate
        revision = self._read_revision(key) if self._asked else 0
        self._asked = True
        ops: list[Op] = [
            Put(key, member_to_json(member), lease),
            Put(self._keys.candidate(member.agent), member.node, lease),
            Put(last, member.agent, tell_replaced=True),
            *reads,
        ]
        done = self._store.transact([modified_at(key, revision)], ops=ops)
        if not done.succeeded:
            raise StoreUnavailable(f"{key} changed while it was being written; trying again")
        self._member = self._written = member
        self._owes = False
        self._revision = self.since_revision = done.revision
        self._renewed(sent_s=sent_s, lasts_s=self._ttl_s)
        self._on_registered(done.replaced.get(last))
        return done

    def _renewed(self, *, sent_s: float, lasts_s: float) -> None:
        self.valid_until_s = certain_until_s(sent_s=sent_s, granted_s=lasts_s)
        if self._page is not None:
            self._page.extend(AGENT, until_s=self.valid_until_s)
        self.trouble = None

    def _read_revision(self, key: str) -> int:
        entry = self._store.get(key)
        return entry.mod_revision if entry else 0

    def _note_trouble(self, error: StoreError) -> None:
        if self.trouble is None:
            _log.warning("the lease of this agent could not be renewed: %s", error)
        self.trouble = error if isinstance(error, StoreUnavailable) else StoreUnavailable(str(error))
