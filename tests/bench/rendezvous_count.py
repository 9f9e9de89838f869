"""Counting link: the real link to etcd, that counts what it sends and receives, by kind."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

from elastic.rendezvous.etcd import EtcdStore
from elastic.rendezvous.etcd_link import Answered, EtcdLink
from elastic.rendezvous.options import RendezvousOptions


class Traffic:
    """Messages and bytes by kind, in both directions; a response to a unary call belongs to the call's kind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.messages: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def add(self, kind: str, *messages: Any) -> None:
        with self._lock:
            self.messages[kind] += len(messages)
            self.bytes[kind] += sum(message.ByteSize() for message in messages)

    def take(self) -> dict[str, list[int]]:
        """What was counted since the last call: {kind: [messages, bytes]}."""
        with self._lock:
            taken = {kind: [count, self.bytes[kind]] for kind, count in self.messages.items()}
            self.messages.clear()
            self.bytes.clear()
        return taken


class CountingLink(EtcdLink):
    """Counts at the border to gRPC, so that nothing of the client is left out."""

    def __init__(self, options: RendezvousOptions, *, traffic: Traffic) -> None:
        super().__init__(options)
        self._traffic = traffic

    def ask(self, stub: str, method: str, request: Any, *, timeout_s: float | None = None) -> Answered:
        answered = super().ask(stub, method, request, timeout_s=timeout_s)
        self._traffic.add(method, request, answered.message)
        return answered

    def exchange(self, stub: str, method: str, request: Any) -> Any:
        answer = super().exchange(stub, method, request)
        self._traffic.add(method, request, answer)
        return answer

    def open_stream(self, stub: str, method: str, requests: Iterator[Any]) -> Any:
        return _CountedStream(super().open_stream(stub, method, self._sent(requests)), traffic=self._traffic)

    def _sent(self, requests: Iterator[Any]) -> Iterator[Any]:
        for request in requests:
            self._traffic.add("watch request", request)
            yield request


class _CountedStream:
    def __init__(self, stream: Any, *, traffic: Traffic) -> None:
        self._stream, self._traffic = stream, traffic

    def __iter__(self) -> Iterator[Any]:
        for response in self._stream:
            self._traffic.add("watch event" if response.events else "watch answer", response)
            yield response

    def cancel(self) -> None:
        self._stream.cancel()


def counting_store(options: RendezvousOptions, *, traffic: Traffic) -> EtcdStore:
    """The real store on a counting link."""
    return EtcdStore(options, link=CountingLink(options, traffic=traffic))
