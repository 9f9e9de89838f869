"""A disk that stalls in one thing until it is told to go on."""

from __future__ import annotations

import threading
from collections.abc import Callable

from elastic.checkpoint.manifest import FileFacts
from elastic.checkpoint.storage import PosixStorage
from tests.harness import until as wait

LIMIT_S = 30.0


def until(done: Callable[[], bool]) -> None:
    """Wait for another thread's work; there is nothing that it could tell it by."""
    wait.until(done, what="another thread's work", limit_s=LIMIT_S, look_s=0.002)


class Gate(PosixStorage):
    """A disk that does one thing, writing shards unless it is told another, only once the gate is open."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.asked = threading.Event()
        self.stalls = "write .safetensors"

    def write(self, path: str, data: bytes | memoryview) -> None:
        self._pass(f"write {path}")
        super().write(path, data)

    def make_dir(self, path: str) -> None:
        self._pass(f"make_dir {path}")
        super().make_dir(path)

    def replace(self, path: str, data: bytes) -> None:
        self._pass(f"replace {path}")
        super().replace(path, data)

    def publish(self, path: str, target: str) -> None:
        self._pass(f"publish {target}")
        super().publish(path, target)

    def facts(self, path: str) -> FileFacts:
        self._pass(f"facts {path}")
        return super().facts(path)

    def remove_tree(self, path: str) -> None:
        self._pass(f"remove_tree {path}")
        super().remove_tree(path)

    def pause(self) -> None:
        """Let what waits go on, and nothing after it."""
        before, self.open = self.open, threading.Event()
        self.asked.clear()
        before.set()

    def _pass(self, what: str) -> None:
        done, _, end = self.stalls.partition(" ")
        if what.startswith(done) and what.endswith(end):
            self.asked.set()
            assert self.open.wait(LIMIT_S)
