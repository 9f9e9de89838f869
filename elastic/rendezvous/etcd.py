"""Store on etcd v3: the key-value seam's verbs as etcd's requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from elastic.clock import SYSTEM_CLOCK, Clock
from elastic.rendezvous.errors import LeaseEnded
from elastic.rendezvous.etcd_leases import LeaseStream
from elastic.rendezvous.etcd_link import EtcdLink
from elastic.rendezvous.etcd_stream import WatchStream
from elastic.rendezvous.etcd_watch import EtcdWatch, entry_of
from elastic.rendezvous.kv import Aspect, Compare, Entry, Get, OnBreak, OnUpdate, Op, Put, Snapshot, Transacted
from elastic.rendezvous.options import RendezvousOptions


class EtcdStore:
    """A KeyValueStore; several endpoints are members of one cluster. Connects with the first request."""

    def __init__(
        self, options: RendezvousOptions, *, clock: Clock = SYSTEM_CLOCK, link: EtcdLink | None = None
    ) -> None:
        self._link = link or EtcdLink(options, clock=clock)
        self._rpc = self._link.rpc
        self._stream = WatchStream(self._link, clock=clock)
        self._leases = LeaseStream(self._link)

    def grant(self, ttl_s: int) -> int:
        lease: int = self._link.call("Lease", "LeaseGrant", self._rpc.LeaseGrantRequest(TTL=ttl_s)).ID
        return lease

    def keep_alive(self, lease: int) -> float:
        return self._leases.renew(lease)

    def revoke(self, lease: int) -> None:
        # One transaction later the keys are gone for every reader; a lease that has ended is what was wanted.
        try:
            self._link.call("Lease", "LeaseRevoke", self._rpc.LeaseRevokeRequest(ID=lease))
        except LeaseEnded:
            return

    def get(self, key: str) -> Entry | None:
        entries = self._read(key.encode(), b"").entries
        return entries[0] if entries else None

    def range(self, prefix: str) -> Snapshot:
        return self._read(prefix.encode(), _range_end(prefix))

    def put(self, key: str, value: str, *, lease: int = 0) -> int:
        request = self._rpc.PutRequest(key=key.encode(), value=value.encode(), lease=lease)
        revision: int = self._link.call("KV", "Put", request).header.revision
        return revision

    def transact(self, compares: Sequence[Compare], *, ops: Sequence[Op]) -> Transacted:
        # Where an answer was lost and the second try is refused, what the keys hold tells whether the first was done.
        written = [op for op in ops if isinstance(op, Put)]
        request = self._rpc.TxnRequest(
            compare=[self._compare(compare) for compare in compares],
            success=[self._op(op) for op in ops],
            failure=[self._rpc.RequestOp(request_range=self._rpc.RangeRequest(key=op.key.encode())) for op in written],
        )
        answered = self._link.ask("KV", "Txn", request)
        answer = answered.message
        if answered.doubtful and not answer.succeeded and (revision := _done_before(answer, written)):
            return Transacted(succeeded=True, revision=revision)
        replaced = [item.response_put.prev_kv for item in answer.responses if item.response_put.HasField("prev_kv")]
        found = zip(ops, answer.responses, strict=True) if answer.succeeded else ()
        read = {op.key: item.response_range.kvs for op, item in found if isinstance(op, Get)}
        return Transacted(
            succeeded=answer.succeeded,
            revision=answer.header.revision,
            replaced={entry.key: entry for entry in map(entry_of, replaced)},
            read={key: entry_of(entries[0]) if entries else None for key, entries in read.items()},
        )

    def watch(
        self, key: str, *, prefix: bool = False, since: int | None = None, on_update: OnUpdate, on_break: OnBreak
    ) -> EtcdWatch:
        start, end = key.encode(), _range_end(key) if prefix else b""
        watch = EtcdWatch(
            self._stream,
            rpc=self._rpc,
            key=start,
            range_end=end,
            since=since,
            read=lambda: self._read(start, end),
            on_update=on_update,
            on_break=on_break,
        )
        watch.start()
        return watch

    def close(self) -> None:
        self._link.close()
        self._stream.close()
        self._leases.close()

    def _read(self, key: bytes, range_end: bytes) -> Snapshot:
        answer = self._link.call("KV", "Range", self._rpc.RangeRequest(key=key, range_end=range_end))
        return Snapshot(entries=tuple(entry_of(item) for item in answer.kvs), revision=answer.header.revision)

    def _compare(self, compare: Compare) -> Any:
        kind = self._rpc.Compare
        key = compare.key.encode()
        if compare.aspect is Aspect.PRESENT:
            return kind(key=key, target=kind.CREATE, result=kind.GREATER, create_revision=0)
        if compare.aspect is Aspect.CREATED:
            return kind(key=key, target=kind.CREATE, result=kind.EQUAL, create_revision=compare.expected)
        if compare.aspect is Aspect.MODIFIED:
            return kind(key=key, target=kind.MOD, result=kind.EQUAL, mod_revision=compare.expected)
        return kind(key=key, target=kind.VALUE, result=kind.EQUAL, value=str(compare.expected).encode())

    def _op(self, op: Op) -> Any:
        if isinstance(op, Put):
            put = self._rpc.PutRequest(
                key=op.key.encode(), value=op.value.encode(), lease=op.lease, prev_kv=op.tell_replaced
            )
            return self._rpc.RequestOp(request_put=put)
        if isinstance(op, Get):
            return self._rpc.RequestOp(request_range=self._rpc.RangeRequest(key=op.key.encode()))
        return self._rpc.RequestOp(request_delete_range=self._rpc.DeleteRangeRequest(key=op.key.encode()))


def _range_end(prefix: str) -> bytes:
    """The first key after all that begin with the prefix."""
    raw = prefix.encode().rstrip(b"\xff")
    return raw[:-1] + bytes([raw[-1] + 1])


def _done_before(message: Any, written: Sequence[Put]) -> int:
    """The one revision at which all the keys were given the very values that were to be written; 0 if they were not."""
    found = [item.response_range.kvs for item in message.responses]
    holding = [kvs[0] for kvs, put in zip(found, written, strict=True) if kvs and kvs[0].value == put.value.encode()]
    revisions = {item.mod_revision for item in holding}
    return int(revisions.pop()) if len(holding) == len(written) and len(revisions) == 1 else 0
