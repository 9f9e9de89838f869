"""Stream of renewals: all leases of one link are kept on one gRPC stream that lasts.

A stream for each renewal costs etcd and this process several times what the renewal does. A thread reads answers only
while one is awaited: a stream that nobody reads costs nothing, one that is read wakes ten times a second.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from concurrent.futures import Future
from typing import Any

from elastic.rendezvous.etcd_link import EtcdLink, Unanswered, drain


class LeaseStream:
    """Renews leases until closed; a stream that broke is replaced by the next renewal. Thread-safe."""

    def __init__(self, link: EtcdLink) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._current: _Exchange | None = None

    def renew(self, lease: int) -> float:
        """The seconds that the lease now lasts, 0.0 where it has ended. Raises like `EtcdLink.call`."""
        return float(
            self._link.attempt("Lease", lambda _stub, *, timeout, **_how: self._renew(lease, timeout)).message.TTL
        )

    def close(self) -> None:
        """Renew no more."""
        with self._lock:
            exchange, self._current = self._current, None
        if exchange is not None:
            exchange.end()

    def _renew(self, lease: int, timeout_s: float) -> Any:
        exchange, fresh = self._exchange()
        try:
            return exchange.ask(lease, timeout_s=timeout_s)
        except self._link.rpc_error:
            self._drop(exchange)
            if fresh:
                raise
        except BaseException:
            self._drop(exchange)
            raise
        # It broke while nobody read it, as when etcd was started again: that says nothing about etcd now.
        return self._renew(lease, timeout_s)

    def _exchange(self) -> tuple[_Exchange, bool]:
        """The stream in use, and whether it is new."""
        with self._lock:
            if self._current is not None:
                return self._current, False
            self._current = _Exchange(self._link)
            return self._current, True

    def _drop(self, exchange: _Exchange) -> None:
        with self._lock:
            if self._current is exchange:
                self._current = None
        exchange.end()


class _Exchange:
    """One stream: a request for a lease is answered by a response with its number."""

    def __init__(self, link: EtcdLink) -> None:
        self._rpc, self._broken = link.rpc, link.rpc_error
        self._lock = threading.Lock()
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._awaited: dict[int, deque[Future[Any]]] = {}
        self._reads = False
        self._stream = link.open_stream("Lease", "LeaseKeepAlive", drain(self._requests))

    def ask(self, lease: int, *, timeout_s: float) -> Any:
        """One renewal. Raises Unanswered, and what the stream raises when it breaks."""
        answer: Future[Any] = Future()
        with self._lock:
            self._awaited.setdefault(lease, deque()).append(answer)
            self._requests.put(self._rpc.LeaseKeepAliveRequest(ID=lease))
            if not self._reads:
                self._reads = True
                threading.Thread(target=self._read, name="elastic-etcd-leases", daemon=True).start()
        try:
            return answer.result(timeout_s)
        except TimeoutError:
            raise Unanswered(f"no renewal within {timeout_s:g} s") from None

    def end(self) -> None:
        """Break the stream; who waits for an answer hears of it."""
        self._requests.put(None)
        self._stream.cancel()

    def _read(self) -> None:
        try:
            for response in self._stream:
                with self._lock:
                    # Each answer is for one request: an earlier one's says nothing about what was sent later.
                    waiting = self._awaited.get(response.ID)
                    answer = waiting.popleft() if waiting else None
                    if not waiting:
                        self._awaited.pop(response.ID, None)
                    done = not self._awaited
                    self._reads = not done
                if answer is not None:
                    answer.set_result(response)
                if done:
                    return
            self._break(Unanswered("etcd ended the renewals"))
        except (self._broken, ValueError) as error:
            self._break(error)

    def _break(self, error: Exception) -> None:
        with self._lock:
            awaited, self._awaited = self._awaited, {}
            self._reads = False
        for answers in awaited.values():
            for answer in answers:
                answer.set_exception(error)
