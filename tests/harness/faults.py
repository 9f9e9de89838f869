"""Faults on real processes, each of which says that it fired."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from elastic.local.node import Node, descendants
from tests.harness.until import ended, until


def state_of(pid: int) -> str:
    """The letter of /proc: T is stopped, Z has ended; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def runs(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    return state_of(pid) not in ("", "Z")


def came_to(pid: int, *states: str, limit_s: float = 5.0) -> bool:
    """Whether a process comes to one of these states; one that is gone has state ''."""
    if {"", "Z"} <= set(states):
        return ended(pid, limit_s=limit_s)
    try:
        until(lambda: state_of(pid) in states, what="its state", limit_s=limit_s, look_s=0.001)
    except AssertionError:
        return False
    return True


class Frozen:
    """Processes of a node stopped with SIGSTOP while inside the `with`: agent, workers, or both."""

    def __init__(self, node: Node, *, agent: bool = True, workers: bool = True) -> None:
        below = descendants(node.pid)
        self.pids = [*([node.pid] if agent else []), *(below if workers else [])]
        self.at_s = 0.0

    @property
    def fired(self) -> bool:
        """Whether they have all come to a halt; a signal takes a moment to arrive."""
        return bool(self.pids) and all(came_to(pid, "T") for pid in self.pids)

    def thaw(self, pids: Sequence[int] | None = None) -> None:
        for pid in self.pids if pids is None else pids:
            if runs(pid):
                os.kill(pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        self.at_s = time.clock_gettime(time.CLOCK_REALTIME)
        for pid in self.pids:
            os.kill(pid, signal.SIGSTOP)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.thaw()
