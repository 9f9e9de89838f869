"""Stream of watches: all that one link watches, on one gRPC stream that one thread reads.

A watch more costs etcd and this process one small request, no stream and no thread. When the stream breaks, or etcd
gives up one of its watches, all of them begin again, each after the last revision that it has seen.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections import deque
from typing import Any, Protocol

from elastic.clock import Clock
from elastic.errors import StoreError
from elastic.rendezvous.etcd_link import EtcdLink, drain
from elastic.rendezvous.outage import Outage

_log = logging.getLogger(__name__)
_RETRY_S = 0.2
_CANCEL_S = 1.0


class Watching(Protocol):
    """One watch, as the stream sees it."""

    @property
    def has_begun(self) -> bool:
        """Whether it knows what to go on after."""
        ...

    def begin(self) -> None:
        """Read and tell all there is. Raises StoreError."""
        ...

    def request(self) -> Any:
        """The WatchCreateRequest that goes on after what was seen."""
        ...

    def receive(self, response: Any) -> str | None:
        """Take one response; the reason to begin again, if there is one."""
        ...

    def broke(self, reason: str) -> None:
        """The stream broke, or another watch on it did."""
        ...


class WatchStream:
    """Carries watches until they are removed; its thread lives while there are any. Thread-safe."""

    def __init__(self, link: EtcdLink, *, clock: Clock) -> None:
        self._link = link
        self._outage = Outage("the stream of watches", log=_log, clock=clock)
        self._lock = threading.Lock()
        self._watches: dict[Watching, int | None] = {}
        self._by_id: dict[int, Watching] = {}
        self._creating: deque[Watching] = deque()
        self._requests: queue.SimpleQueue[Any] | None = None
        self._stream: Any = None
        self._thread: threading.Thread | None = None
        self._pause = threading.Event()

    def add(self, watch: Watching) -> None:
        """Carry one more; one that has not begun is begun by the stream's thread."""
        with self._lock:
            self._watches[watch] = None
            if self._thread is None:
                self._pause.clear()
                self._thread = threading.Thread(target=self._run, name="elastic-etcd-watch", daemon=True)
                self._thread.start()
            elif self._requests is not None:
                if watch.has_begun:
                    self._create(watch)
                elif self._stream is not None:
                    self._stream.cancel()

    def remove(self, watch: Watching) -> None:
        """Carry one less; without any the stream ends."""
        with self._lock:
            number = self._watches.pop(watch, None)
            if number is not None and self._requests is not None:
                self._by_id.pop(number, None)
                self._give_up(number)
            thread = None if self._watches else self._thread
            if not self._watches:
                self._pause.set()
                if self._stream is not None:
                    self._stream.cancel()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_CANCEL_S)

    def forget_token(self) -> None:
        """Log in anew with the next request."""
        self._link.forget_token()

    def close(self) -> None:
        """Carry none any more."""
        with self._lock:
            watches = list(self._watches)
        for watch in watches:
            self.remove(watch)

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._watches:
                    self._thread = None
                    return
                watches = list(self._watches)
            try:
                for watch in watches:
                    if not watch.has_begun:
                        watch.begin()
                reason = self._follow()
            except StoreError as error:
                reason = str(error)
            except self._link.rpc_error as error:
                reason = self._link.explain(error)
            except ValueError as error:
                # The channel was left between choosing and using it.
                reason = str(error)
            with self._lock:
                watches = list(self._watches)
            if watches:
                self._outage.broke(reason)
            for watch in watches:
                watch.broke(reason)
            self._pause.wait(_RETRY_S)

    def _follow(self) -> str:
        """Pass on what the stream brings until it ends; why it did."""
        requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with self._lock:
            if not all(watch.has_begun for watch in self._watches):
                return "a watch was added that has not begun"
            self._requests = requests
            self._by_id.clear()
            self._creating.clear()
            for watch in self._watches:
                self._create(watch)
        stream: Any = None
        try:
            stream = self._link.open_stream("Watch", "Watch", drain(requests))
            with self._lock:
                self._stream = stream
                if not self._watches:
                    return "nothing is watched any more"
            for response in stream:
                if (reason := self._receive(response)) is not None:
                    return reason
            return "etcd ended the watch"
        finally:
            with self._lock:
                self._requests = self._stream = None
            requests.put(None)
            if stream is not None:
                with contextlib.suppress(ValueError):
                    stream.cancel()

    def _receive(self, response: Any) -> str | None:
        with self._lock:
            if response.created:
                # etcd answers in the order of the requests.
                watch = self._creating.popleft()
                if watch in self._watches:
                    self._by_id[response.watch_id] = watch
                    self._watches[watch] = response.watch_id
                else:
                    self._give_up(response.watch_id)
                    return None
            elif (found := self._by_id.get(response.watch_id)) is not None:
                watch = found
            else:
                return None
        reason = watch.receive(response)
        if reason is None:
            self._outage.mended()
        return reason

    def _create(self, watch: Watching) -> None:
        assert self._requests is not None
        self._watches[watch] = None
        self._creating.append(watch)
        self._requests.put(self._link.rpc.WatchRequest(create_request=watch.request()))

    def _give_up(self, number: int) -> None:
        assert self._requests is not None
        request = self._link.rpc.WatchCancelRequest(watch_id=number)
        self._requests.put(self._link.rpc.WatchRequest(cancel_request=request))
