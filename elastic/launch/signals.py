"""Signals that ask the agent to leave, and other wishes of that kind: noted as they come, acted upon where nothing is
half done.

A handler that raises can strike between any two lines: a worker started and not yet known, a process reaped and not
yet counted. So after the start ours only notes and wakes, and the main thread asks `check` where it waits anyway.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from torch.distributed.elastic.multiprocessing import SignalException


class LeaveSignals:
    """What torchrun is to leave on. `handle` is the handler; `on_signal` is called from it and must not block."""

    def __init__(self, *, on_signal: Callable[[], None]) -> None:
        self.received: list[str] = []
        """What asked this node to leave, in the order in which it came."""
        self._asked = False
        self._on_signal = on_signal
        self._at_once = True

    def install(self, names: str) -> None:
        """Handle these signals, names with commas between. Only a main thread can; elsewhere nothing happens."""
        if threading.current_thread() is not threading.main_thread():
            return
        for name in names.split(","):
            signal.signal(getattr(signal, name.strip()), self.handle)

    @property
    def first(self) -> str:
        """What asked first: the name of a signal, or a reason."""
        return self.received[0]

    @property
    def hurried(self) -> bool:
        """Whether it was asked for more than once: at once, then."""
        return len(self.received) > 1

    def ask(self, reason: str) -> None:
        """Leave for another reason than a signal. From any thread; nothing where this node leaves already.

        A signal that follows is the same wish once more, as a machine's last warning: it does not hurry the leave.
        """
        if not self.received:
            self._asked = True
            self.received.append(reason)
        self._on_signal()

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Note a signal. Raises SignalException until `defer` was called: there is nothing yet that it could harm."""
        if self._asked:
            self._asked = False  # it was announced
        else:
            self.received.append(signal.Signals(number).name)
        self._on_signal()
        if self._at_once:
            self.check()

    def defer(self) -> None:
        """From now on signals wait for a `check`."""
        self._at_once = False

    def check(self) -> None:
        """Raise SignalException if a signal has come, or another wish."""
        if self.received:
            raise SignalException(f"process {os.getpid()} is to leave: {self.first}", sigval=signal.SIGTERM)
