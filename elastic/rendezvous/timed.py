"""Timed: a store that tells how long each request took and whether it came to nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from elastic.clock import Clock
from elastic.errors import StoreError
from elastic.rendezvous.errors import LeaseEnded
from elastic.rendezvous.kv import Compare, Entry, KeyValueStore, OnBreak, OnUpdate, Op, Snapshot, Transacted, Watch

Found = TypeVar("Found")


class OnRequest(Protocol):
    """Told of each request: the verb, its seconds, whether the store failed it. From any thread."""

    def __call__(self, op: str, seconds: float, *, failed: bool) -> None: ...


class TimedStore:
    """A KeyValueStore around another one. Watches are not timed: they wait."""

    def __init__(self, store: KeyValueStore, *, clock: Clock, on_request: OnRequest) -> None:
        self._store, self._clock, self._on_request = store, clock, on_request

    def grant(self, ttl_s: int) -> int:
        return self._timed("grant", lambda: self._store.grant(ttl_s))

    def keep_alive(self, lease: int) -> float:
        return self._timed("keep_alive", lambda: self._store.keep_alive(lease))

    def revoke(self, lease: int) -> None:
        self._timed("revoke", lambda: self._store.revoke(lease))

    def get(self, key: str) -> Entry | None:
        return self._timed("get", lambda: self._store.get(key))

    def range(self, prefix: str) -> Snapshot:
        return self._timed("range", lambda: self._store.range(prefix))

    def put(self, key: str, value: str, *, lease: int = 0) -> int:
        return self._timed("put", lambda: self._store.put(key, value, lease=lease))

    def transact(self, compares: Sequence[Compare], *, ops: Sequence[Op]) -> Transacted:
        return self._timed("transact", lambda: self._store.transact(compares, ops=ops))

    def watch(
        self, key: str, *, prefix: bool = False, since: int | None = None, on_update: OnUpdate, on_break: OnBreak
    ) -> Watch:
        return self._store.watch(key, prefix=prefix, since=since, on_update=on_update, on_break=on_break)

    def close(self) -> None:
        self._store.close()

    def _timed(self, op: str, ask: Callable[[], Found]) -> Found:
        began_s, failed = self._clock.monotonic_s(), False
        try:
            return ask()
        except LeaseEnded:
            raise  # an answer like any other
        except StoreError:
            failed = True
            raise
        finally:
            self._on_request(op, self._clock.monotonic_s() - began_s, failed=failed)
