"""Signals that ask the agent to leave: noted as they come, acted upon where nothing is half done.

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
        self.received: list[signal.Signals] = []
        """In the order in which they came; more than one means: at once."""
        self._on_signal = on_signal
        self._at_once = True

    def install(self, names: str) -> None:
        """Handle these signals, names with commas between. Only a main thread can; elsewhere nothing happens."""
        if threading.current_thread() is not threading.main_thread():
            return
        for name in names.split(","):
            signal.signal(getattr(signal, name.strip()), self.handle)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Note a signal. Raises SignalException until `defer` was called: there is nothing yet that it could harm."""
        self.received.append(signal.Signals(number))
        self._on_signal()
        if self._at_once:
            self.check()

    def defer(self) -> None:
        """From now on signals wait for a `check`."""
        self._at_once = False

    def check(self) -> None:
        """Raise SignalException if a signal has come."""
        if self.received:
            first = self.received[0]
            raise SignalException(f"process {os.getpid()} got signal {int(first)}", sigval=first)
