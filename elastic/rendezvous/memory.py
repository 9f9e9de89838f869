"""Memory: a store in this process that behaves like etcd, for tests of all that stands on one.

One MemoryServer is the cluster; each agent of a test gets its own MemoryStore, whose link can be cut.
"""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import threading
from collections.abc import Callable, Iterator, Sequence

from elastic.clock import SYSTEM_CLOCK, Clock
from elastic.errors import StoreUnavailable
from elastic.rendezvous.errors import LeaseEnded
from elastic.rendezvous.kv import (
    Aspect,
    Compare,
    Delete,
    Entry,
    Get,
    OnBreak,
    OnUpdate,
    Op,
    Put,
    Snapshot,
    Transacted,
    Update,
)


@dataclasses.dataclass
class _Lease:
    ttl_s: int
    until_s: float


class MemoryServer:
    """Keys, leases and revisions. Leases end as the clock passes; `expire` looks without waiting for a request."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._entries: dict[str, Entry] = {}
        self._leases: dict[int, _Lease] = {}
        self._next_lease = 1
        self._watches: list[_MemoryWatch] = []
        self.revision = 1

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """One request at a time, after ending the leases that are due."""
        with self._lock:
            self.expire()
            yield

    def expire(self) -> None:
        """End the leases whose time has passed."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            for lease in [lease for lease, held in self._leases.items() if held.until_s <= now_s]:
                self.drop_lease(lease)

    def compact(self) -> None:
        """Forget the past: every watch has to read everything again."""
        with self.turn():
            for watch in self._watches:
                watch.restart("compacted")

    def wipe(self) -> None:
        """Lose all keys and leases, as when a cluster is set up anew: revisions begin again."""
        with self._lock:
            self._entries.clear()
            self._leases.clear()
            self.revision = 1
            for watch in self._watches:
                watch.restart("another cluster")

    def new_lease(self, ttl_s: int) -> int:
        lease, self._next_lease = self._next_lease, self._next_lease + 1
        self._leases[lease] = _Lease(ttl_s=ttl_s, until_s=self._clock.monotonic_s() + ttl_s)
        return lease

    def renew(self, lease: int) -> float:
        held = self._leases.get(lease)
        if held is None:
            return 0.0
        held.until_s = self._clock.monotonic_s() + held.ttl_s
        return float(held.ttl_s)

    def drop_lease(self, lease: int) -> None:
        self._leases.pop(lease, None)
        keys = [key for key, entry in self._entries.items() if entry.lease == lease]
        if keys:
            self.apply([Delete(key) for key in keys])

    def read(self, covers: Callable[[str], bool]) -> Snapshot:
        entries = tuple(self._entries[key] for key in sorted(self._entries) if covers(key))
        return Snapshot(entries=entries, revision=self.revision)

    def passes(self, compare: Compare) -> bool:
        entry = self._entries.get(compare.key)
        actual: int | str | None
        if compare.aspect is Aspect.PRESENT:
            actual = int(entry is not None)
        elif compare.aspect is Aspect.CREATED:
            actual = entry.create_revision if entry else 0
        elif compare.aspect is Aspect.MODIFIED:
            actual = entry.mod_revision if entry else 0
        else:
            actual = entry.value if entry else None
        return actual == compare.expected

    def apply(self, ops: Sequence[Op]) -> None:
        """Do the operations at one new revision and tell the watches."""
        for op in ops:
            if isinstance(op, Put) and op.lease and op.lease not in self._leases:
                raise LeaseEnded(f"lease {op.lease} has ended; {op.key} was not written")
        self.revision += 1
        put: dict[str, Entry] = {}
        deleted: list[str] = []
        for op in ops:
            if isinstance(op, Get):
                continue
            if isinstance(op, Delete):
                if self._entries.pop(op.key, None) is not None:
                    deleted.append(op.key)
                continue
            old = self._entries.get(op.key)
            created = old.create_revision if old else self.revision
            put[op.key] = self._entries[op.key] = Entry(
                key=op.key, value=op.value, create_revision=created, mod_revision=self.revision, lease=op.lease
            )
        update = Update(entries=tuple(put.values()), deleted=tuple(deleted), revision=self.revision)
        for watch in self._watches:
            watch.offer(update)

    def add_watch(self, watch: _MemoryWatch) -> None:
        self._watches.append(watch)

    def remove_watch(self, watch: _MemoryWatch) -> None:
        with self._lock:
            self._watches = [other for other in self._watches if other is not watch]


class MemoryStore:
    """One client of a server: a KeyValueStore."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self._cut = False
        self._watches: list[_MemoryWatch] = []

    def cut(self) -> None:
        """Break the link: requests raise, watches hear nothing."""
        self._cut = True
        for watch in self._watches:
            watch.mute("link cut")

    def heal(self) -> None:
        """Mend the link: watches begin anew."""
        self._cut = False
        with self._server.turn():
            for watch in self._watches:
                watch.restart("link mended")

    def grant(self, ttl_s: int) -> int:
        with self._request():
            return self._server.new_lease(ttl_s)

    def keep_alive(self, lease: int) -> float:
        with self._request():
            return self._server.renew(lease)

    def revoke(self, lease: int) -> None:
        with self._request():
            self._server.drop_lease(lease)

    def get(self, key: str) -> Entry | None:
        with self._request():
            found = self._server.read(lambda other: other == key).entries
            return found[0] if found else None

    def range(self, prefix: str) -> Snapshot:
        with self._request():
            return self._server.read(lambda key: key.startswith(prefix))

    def put(self, key: str, value: str, *, lease: int = 0) -> int:
        return self.transact([], ops=[Put(key, value, lease)]).revision

    def transact(self, compares: Sequence[Compare], *, ops: Sequence[Op]) -> Transacted:
        with self._request():
            succeeded = all(self._server.passes(compare) for compare in compares)
            asked = {op.key for op in ops if isinstance(op, Put) and op.tell_replaced}
            replaced = {entry.key: entry for entry in self._server.read(asked.__contains__).entries if succeeded}
            if succeeded and ops:
                self._server.apply(ops)
            reads = [op.key for op in ops if isinstance(op, Get)] if succeeded else []
            found = {entry.key: entry for entry in self._server.read(set(reads).__contains__).entries}
            return Transacted(
                succeeded=succeeded,
                revision=self._server.revision,
                replaced=replaced,
                read={key: found.get(key) for key in reads},
            )

    def watch(
        self, key: str, *, prefix: bool = False, since: int | None = None, on_update: OnUpdate, on_break: OnBreak
    ) -> _MemoryWatch:
        """Memory keeps no history: with `since` it tells all there is, unless nothing was written from then on."""
        covers = (lambda other: other.startswith(key)) if prefix else (lambda other: other == key)
        watch = _MemoryWatch(self._server, covers=covers, on_update=on_update, on_break=on_break)
        with self._server.turn():
            self._server.add_watch(watch)
            self._watches.append(watch)
            if self._cut:
                watch.mute("link cut")
            elif since is None or since < self._server.revision:
                watch.restart("")
        return watch

    def close(self) -> None:
        for watch in self._watches:
            watch.cancel()

    @contextlib.contextmanager
    def _request(self) -> Iterator[None]:
        if self._cut:
            raise StoreUnavailable("the memory store's link is cut")
        with self._server.turn():
            yield


class _MemoryWatch:
    def __init__(
        self, server: MemoryServer, *, covers: Callable[[str], bool], on_update: OnUpdate, on_break: OnBreak
    ) -> None:
        self._server, self._covers = server, covers
        self._on_update, self._on_break = on_update, on_break
        self._muted = False
        self._queue: queue.SimpleQueue[Update | str | None] = queue.SimpleQueue()
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._run, name="elastic-memory-watch", daemon=True)
        self._thread.start()

    def offer(self, update: Update) -> None:
        """Pass on the part of an update that is watched."""
        entries = tuple(entry for entry in update.entries if self._covers(entry.key))
        deleted = tuple(key for key in update.deleted if self._covers(key))
        if (entries or deleted) and not self._muted:
            self._queue.put(dataclasses.replace(update, entries=entries, deleted=deleted))

    def mute(self, reason: str) -> None:
        """Hear nothing until `restart`."""
        self._muted = True
        self._queue.put(reason)

    def restart(self, reason: str) -> None:
        """Tell all that is."""
        self._muted = False
        if reason:
            self._queue.put(reason)
        snapshot = self._server.read(self._covers)
        self._queue.put(Update(entries=snapshot.entries, revision=snapshot.revision, reset=True))

    def cancel(self) -> None:
        self._cancelled.set()
        self._server.remove_watch(self)
        self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None and not self._cancelled.is_set():
            if isinstance(item, str):
                self._on_break(item)
            else:
                self._on_update(item)
