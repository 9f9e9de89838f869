"""Objects: the few requests that an object store is asked, and how they are repeated when one fails.

A store has whole objects under flat names; it cannot rename, append or lock. What it can do, and on which everything
rests, is to make an object only where there is none.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from elastic.clock import Clock

Result = TypeVar("Result")

TRIES = 6
FIRST_PAUSE_S = 0.2
"""Doubled at each further try: a request is given up after about 6 s, and what it was for has failed."""
_FINAL = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)
"""What no repetition changes."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What lies directly under a prefix, by last part of the name."""

    sizes_bytes: Mapping[str, int]
    folders: tuple[str, ...]


class ObjectStore(Protocol):
    """Keys are whole URLs. Every request raises OSError where it fails."""

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes of an object; fewer where it is shorter. FileNotFoundError where there is none."""
        ...

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Make or replace an object, at once and durably."""
        ...

    def put_new(self, key: str, data: bytes | memoryview) -> bool:
        """Make an object only where there is none; whether it was made."""
        ...

    def size_bytes(self, key: str) -> int | None:
        """Length of an object; None where there is none."""
        ...

    def list(self, prefix: str) -> Listing:
        """What is directly under a prefix, which ends without a slash."""
        ...

    def keys(self, prefix: str) -> Sequence[str]:
        """All objects under a prefix, at any depth."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that are not there are fine."""
        ...


class PatientStore:
    """Repeats requests that failed for no final reason, checks that answers are whole, and counts what it repeated."""

    def __init__(self, store: ObjectStore, *, clock: Clock, tell: Callable[[str], None] = lambda text: None) -> None:
        """`tell`: hears of each repetition."""
        self._store, self._clock, self._tell = store, clock, tell
        self.repeated = 0
        """Requests that were made again, so far."""

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        return self._patiently(f"reading {key}", lambda _: self._get(key, start, stop))

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._patiently(f"writing {key}", lambda _: self._store.put(key, data))

    def put_new(self, key: str, data: bytes | memoryview) -> bool:
        def once(tried: int) -> bool:
            # The answer to an earlier try may have been lost, and its object be the one that is in the way.
            return self._store.put_new(key, data) or (tried > 0 and self._store.get(key) == data)

        return self._patiently(f"making {key}", once)

    def size_bytes(self, key: str) -> int | None:
        return self._patiently(f"looking at {key}", lambda _: self._store.size_bytes(key))

    def list(self, prefix: str) -> Listing:
        return self._patiently(f"listing {prefix}", lambda _: self._store.list(prefix))

    def keys(self, prefix: str) -> Sequence[str]:
        return self._patiently(f"listing {prefix}", lambda _: self._store.keys(prefix))

    def delete(self, keys: Sequence[str]) -> None:
        if keys:
            self._patiently(f"deleting {keys[0]}", lambda _: self._store.delete(keys))

    def _get(self, key: str, start: int, stop: int | None) -> bytes:
        data = self._store.get(key, start, stop)
        if stop is None or len(data) < stop - start:  # an answer that was cut off must not be taken for a short object
            size_bytes = self._store.size_bytes(key)
            whole = (size_bytes or 0) if stop is None else min(size_bytes or 0, stop)
            if len(data) != max(0, whole - start):
                raise OSError(errno.EIO, f"{len(data)} bytes came of {whole - start}", key)
        return data

    def _patiently(self, doing: str, request: Callable[[int], Result]) -> Result:
        pause_s = FIRST_PAUSE_S
        for tried in range(TRIES):
            try:
                return request(tried)
            except _FINAL:
                raise
            except OSError as error:
                if tried == TRIES - 1:
                    raise
                self.repeated += 1
                self._tell(f"{doing} failed and is tried again: {error}")
                self._clock.sleep(pause_s)
                pause_s *= 2
        raise AssertionError("unreachable: the last try returns or raises")
