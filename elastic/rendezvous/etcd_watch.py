"""Watch on etcd that mends itself: begun again after the last revision seen, or with all there is after a gap."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from elastic.errors import StoreError
from elastic.rendezvous.etcd_link import EtcdLink
from elastic.rendezvous.kv import Entry, OnBreak, OnUpdate, Snapshot, Update

_RETRY_S = 0.2
_CANCEL_S = 1.0


def entry_of(item: Any) -> Entry:
    """An entry from etcd's KeyValue message."""
    return Entry(
        key=item.key.decode(),
        value=item.value.decode(),
        create_revision=item.create_revision,
        mod_revision=item.mod_revision,
        lease=item.lease,
    )


class EtcdWatch:
    """One watch on a stream and in a thread of its own."""

    def __init__(
        self,
        link: EtcdLink,
        *,
        key: bytes,
        range_end: bytes,
        read: Callable[[], Snapshot],
        on_update: OnUpdate,
        on_break: OnBreak,
    ) -> None:
        self._link, self._key, self._range_end, self._read = link, key, range_end, read
        self._on_update, self._on_break = on_update, on_break
        self._revision: int | None = None
        self._cluster: int | None = None
        self._stream: Any = None
        self._cancelled = threading.Event()
        # Held while a callback runs, so that none begins after `cancel` returned.
        self._telling = threading.RLock()
        self._thread = threading.Thread(target=self._run, name="elastic-etcd-watch", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Stop; a thread that waits for an answer ends later by itself."""
        with self._telling:
            self._cancelled.set()
        if (stream := self._stream) is not None:
            stream.cancel()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CANCEL_S)

    def _run(self) -> None:
        while not self._cancelled.is_set():
            try:
                if self._revision is None:
                    self._begin()
                reason = self._follow()
            except StoreError as error:
                reason = str(error)
            except self._link.rpc_error as error:
                reason = self._link.explain(error)
            except ValueError as error:
                # The channel was left between choosing and using it.
                reason = str(error)
            self._tell(functools.partial(self._on_break, reason))
            self._cancelled.wait(_RETRY_S)

    def _begin(self) -> None:
        snapshot = self._read()
        self._revision = snapshot.revision
        update = Update(entries=snapshot.entries, revision=snapshot.revision, reset=True)
        self._tell(lambda: self._on_update(update))

    def _follow(self) -> str:
        """Deliver what the stream brings until it ends; why it did."""
        rpc = self._link.rpc
        assert self._revision is not None
        create = rpc.WatchCreateRequest(key=self._key, range_end=self._range_end, start_revision=self._revision + 1)
        requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        requests.put(rpc.WatchRequest(create_request=create))
        stream = self._stream = self._link.open_stream("Watch", "Watch", _drain(requests))
        try:
            if self._cancelled.is_set():
                return "cancelled"
            for response in stream:
                if (reason := self._receive(response)) is not None:
                    return reason
            return "etcd ended the watch"
        finally:
            self._stream = None
            requests.put(None)
            with contextlib.suppress(ValueError):
                stream.cancel()

    def _receive(self, response: Any) -> str | None:
        """Deliver one response; the reason to begin again, if there is one."""
        assert self._revision is not None
        if response.canceled:
            if response.compact_revision:
                self._revision = None
                return f"etcd forgot what was before revision {response.compact_revision}"
            if response.created:
                # Refused, for want of rights or with a token that ran out: etcd does not say which. A read will.
                self._link.forget_token()
                self._read()
            return f"etcd ended the watch: {response.cancel_reason or 'no reason given'}"
        cluster = response.header.cluster_id
        if self._cluster not in (None, cluster) or (response.created and response.header.revision < self._revision):
            self._revision, self._cluster = None, cluster
            return "etcd lost what it had, or is another one"
        self._cluster = cluster
        if response.events:
            self._revision = max(self._revision, *(event.kv.mod_revision for event in response.events))
            update = self._update(response.events)
            self._tell(lambda: self._on_update(update))
        return None

    def _update(self, events: Any) -> Update:
        """The last word on each key. An event's type is 0 for a put, 1 for a delete."""
        last = {event.kv.key: event for event in events}
        return Update(
            entries=tuple(entry_of(event.kv) for event in last.values() if event.type == 0),
            deleted=tuple(event.kv.key.decode() for event in last.values() if event.type != 0),
            revision=self._revision or 0,
        )

    def _tell(self, callback: Callable[[], None]) -> None:
        with self._telling:
            if not self._cancelled.is_set():
                callback()


def _drain(requests: queue.SimpleQueue[Any]) -> Iterator[Any]:
    """What gRPC sends: it must not end before the stream does, or etcd ends the watch."""
    while (request := requests.get()) is not None:
        yield request
