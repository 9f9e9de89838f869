"""Watch on etcd that mends itself: begun again after the last revision seen, or with all there is after a gap."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from elastic.errors import StoreError
from elastic.rendezvous.etcd_stream import WatchStream
from elastic.rendezvous.kv import Entry, OnBreak, OnUpdate, Snapshot, Update


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
    """One watch, carried by a stream. `since`: all up to this revision is known already."""

    def __init__(
        self,
        stream: WatchStream,
        *,
        rpc: Any,
        key: bytes,
        range_end: bytes,
        since: int | None,
        read: Callable[[], Snapshot],
        on_update: OnUpdate,
        on_break: OnBreak,
    ) -> None:
        self._stream, self._rpc = stream, rpc
        self._key, self._range_end, self._read = key, range_end, read
        self._on_update, self._on_break = on_update, on_break
        self._revision = since
        self._cluster: int | None = None
        self._cancelled = False
        # Held while a callback runs, so that none begins after `cancel` returned.
        self._telling = threading.RLock()

    @property
    def has_begun(self) -> bool:
        """Whether a revision is known to go on after."""
        return self._revision is not None

    def start(self) -> None:
        """Begin at once if etcd answers, else as soon as it does."""
        try:
            if not self.has_begun:
                self.begin()
        except StoreError as error:
            self.broke(str(error))
        with self._telling:
            if not self._cancelled:
                self._stream.add(self)

    def cancel(self) -> None:
        """Stop; nothing is told any more."""
        with self._telling:
            self._cancelled = True
        self._stream.remove(self)

    def begin(self) -> None:
        """Read and tell all there is. Raises StoreError."""
        snapshot = self._read()
        self._revision = snapshot.revision
        self._tell(Update(entries=snapshot.entries, revision=snapshot.revision, reset=True))

    def request(self) -> Any:
        """The WatchCreateRequest that goes on after what was seen."""
        assert self._revision is not None
        return self._rpc.WatchCreateRequest(key=self._key, range_end=self._range_end, start_revision=self._revision + 1)

    def receive(self, response: Any) -> str | None:
        """Take one response; the reason to begin again, if there is one."""
        assert self._revision is not None
        if response.canceled:
            if response.compact_revision:
                self._revision = None
                return f"etcd forgot what was before revision {response.compact_revision}"
            if response.created:
                # Refused, for want of rights or with a token that ran out: etcd does not say which. A read will.
                self._stream.forget_token()
                self._read()
            return f"etcd ended the watch: {response.cancel_reason or 'no reason given'}"
        cluster = response.header.cluster_id
        if self._cluster not in (None, cluster) or (response.created and response.header.revision < self._revision):
            self._revision, self._cluster = None, cluster
            return "etcd lost what it had, or is another one"
        self._cluster = cluster
        if response.events:
            self._revision = max(self._revision, *(event.kv.mod_revision for event in response.events))
            self._tell(self._update(response.events))
        return None

    def broke(self, reason: str) -> None:
        """The stream broke, or another watch on it did."""
        with self._telling:
            if not self._cancelled:
                self._on_break(reason)

    def _update(self, events: Any) -> Update:
        """The last word on each key. An event's type is 0 for a put, 1 for a delete."""
        last = {event.kv.key: event for event in events}
        return Update(
            entries=tuple(entry_of(event.kv) for event in last.values() if event.type == 0),
            deleted=tuple(event.kv.key.decode() for event in last.values() if event.type != 0),
            revision=self._revision or 0,
        )

    def _tell(self, update: Update) -> None:
        with self._telling:
            if not self._cancelled:
                self._on_update(update)
