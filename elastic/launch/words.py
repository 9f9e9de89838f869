"""Words: what a node's workers said of their end, or of their staying. Safe from any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

from elastic.link import Failure, Stays


class Words:
    """Of one generation; `forget` before the next."""

    def __init__(self, *, wake: Callable[[], None]) -> None:
        """`wake`: called when a worker says that it stays."""
        self._wake = wake
        self._failures: dict[int, Failure] = {}
        self._staying: dict[int, Stays] = {}
        self._generation = 0
        self._lock = threading.Lock()

    @property
    def staying(self) -> dict[int, Stays]:
        """By pid: the workers that wait for the next generation."""
        with self._lock:
            return dict(self._staying)

    def last(self, pid: int) -> Failure | None:
        """Why this worker ended."""
        with self._lock:
            return self._failures.get(pid)

    def fails(self, pid: int, failure: Failure) -> None:
        """A worker ends, and says why."""
        with self._lock:
            self._failures[pid] = failure

    def stays(self, pid: int, stays: Stays) -> None:
        """A worker is out of its generation and stays. Who was late to build before the present one has its place."""
        with self._lock:
            if stays.generation == self._generation:
                self._staying[pid] = stays
        self._wake()

    def forget(self, *, generation: int) -> None:
        """What was said so far is of no interest any more: another generation begins."""
        with self._lock:
            self._generation = generation
            self._failures.clear()
            self._staying.clear()
