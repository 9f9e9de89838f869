"""A storage that fails, tears or dies at its n-th changing operation, and remembers what it was asked."""

from __future__ import annotations

import enum
import errno
import os

from elastic.checkpoint.manifest import FileFacts
from elastic.checkpoint.storage import PosixStorage


class Fault(enum.Enum):
    """What happens at the chosen operation."""

    FAIL = "fail"
    """It is not done, and raises the given error: ENOSPC where none is given."""
    DIE = "die"
    """It is not done, and the process is gone."""
    DIE_AFTER = "die after"
    """It is done, and the process is gone."""
    TEAR = "tear"
    """Half of the bytes are written, and the process is gone (for other operations: as DIE)."""


class Died(BaseException):
    """The process is gone: nothing after this may run, no handler included."""


class FaultyStorage:
    """PosixStorage with one fault. `fired` says whether it came to it; after a death every call dies."""

    def __init__(self, *, at: int | None = None, fault: Fault = Fault.FAIL, number: int = errno.ENOSPC) -> None:
        self.calls: list[str] = []
        self.fired = False
        self._real = PosixStorage()
        self._at = at
        self._fault = fault
        self._number = number
        self._dead = False

    def make_dir(self, path: str) -> None:
        self._change("make_dir", path, lambda: self._real.make_dir(path))

    def write(self, path: str, data: bytes) -> None:
        self._change(
            "write",
            path,
            lambda: self._real.write(path, data),
            tear=lambda: self._real.write(path, data[: len(data) // 2]),
        )

    def replace(self, path: str, data: bytes) -> None:
        self._change("replace", path, lambda: self._real.replace(path, data))

    def create(self, path: str, data: bytes) -> bool:
        return self._change("create", path, lambda: self._real.create(path, data))

    def publish(self, source: str, target: str) -> None:
        self._change("publish", target, lambda: self._real.publish(source, target))

    def sync_dir(self, path: str) -> None:
        self._change("sync_dir", path, lambda: self._real.sync_dir(path))

    def remove_tree(self, path: str) -> None:
        self._change("remove_tree", path, lambda: self._real.remove_tree(path))

    def names(self, path: str) -> list[str]:
        self._alive()
        return self._real.names(path)

    def size_bytes(self, path: str) -> int | None:
        self._alive()
        return self._real.size_bytes(path)

    def read(self, path: str) -> bytes:
        self._alive()
        return self._real.read(path)

    def read_part(self, path: str, start: int, stop: int) -> bytes:
        self._alive()
        return self._real.read_part(path, start, stop)

    def facts(self, path: str) -> FileFacts:
        self._alive()
        return self._real.facts(path)

    def _change(self, verb, path, act, tear=None):
        self._alive()
        self.calls.append(f"{verb} {os.path.basename(path)}")
        if self._at is None or len(self.calls) - 1 != self._at:
            return act()
        self.fired = True
        if self._fault is Fault.FAIL:
            raise OSError(self._number, os.strerror(self._number), path)
        self._dead = True
        if self._fault is Fault.DIE_AFTER:
            act()
        elif self._fault is Fault.TEAR and tear is not None:
            tear()
        raise Died(f"{verb} {path}")

    def _alive(self) -> None:
        if self._dead:
            raise Died("the process is gone")
