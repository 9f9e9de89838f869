"""Counting link: the real link to etcd, that counts what it sends and receives, by kind."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
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

    def open_stream(self, stub: str, method: str, requests: Iterator[Any]) -> Any:
        kinds = _WATCH if method == "Watch" else _Kinds(request=method, event=method, answer=method)
        stream = super().open_stream(stub, method, self._sent(requests, kind=kinds.request))
        return _CountedStream(stream, traffic=self._traffic, kinds=kinds)

    def _sent(self, requests: Iterator[Any], *, kind: str) -> Iterator[Any]:
        for request in requests:
            self._traffic.add(kind, request)
            yield request


@dataclass(frozen=True, kw_only=True)
class _Kinds:
    """What a stream's messages are counted as."""

    request: str
    event: str
    answer: str


_WATCH = _Kinds(request="watch request", event="watch event", answer="watch answer")


class _CountedStream:
    def __init__(self, stream: Any, *, traffic: Traffic, kinds: _Kinds) -> None:
        self._stream, self._traffic, self._kinds = stream, traffic, kinds

    def __iter__(self) -> Iterator[Any]:
        for response in self._stream:
            told = getattr(response, "events", ())
            self._traffic.add(self._kinds.event if told else self._kinds.answer, response)
            yield response

    def cancel(self) -> None:
        self._stream.cancel()


def counting_store(options: RendezvousOptions, *, traffic: Traffic) -> EtcdStore:
    """The real store on a counting link."""
    return EtcdStore(options, link=CountingLink(options, traffic=traffic))
