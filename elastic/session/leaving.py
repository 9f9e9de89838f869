"""Leaving: a signal to this worker itself means what it means to an agent: finish the step, save, go.

With an agent of ours the signal is mostly the agent's. But plain `python`, torch's own agent and batch systems that
signal every process of a job reach the worker, and dying on the spot would lose all steps since the last save.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Self

from elastic.errors import ElasticError, Preempted, Regroup
from elastic.link import Link, NoLink

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
_STATUS = Path("/proc/self/status")


class LeaveOnSignal:
    """Inside the `with`. Signals that the user's program handles, or ignores, are left as they are."""

    def __init__(self, *, link: Callable[[], Link] = NoLink) -> None:
        self._link = link
        self.received: signal.Signals | None = None
        """The first that came."""
        self._before: dict[signal.Signals, Any] = {}
        self._pid = os.getpid()

    def wanted(self) -> bool:
        """Whether this worker is to end after the step: its agent said so, or a signal."""
        return self.received is not None or self._link().regroup_wanted()

    def leaves(self) -> bool:
        """Whether this worker ends for good: its node goes, or a signal came."""
        return self.received is not None or self._link().leave_wanted

    def ending(self, step: int) -> ElasticError:
        """What it ends with. Where an agent of ours is left, that one knows whether to start it again."""
        if self.received is None or self._link().present:
            return Regroup(f"the membership changes at step {step}")
        return Preempted(f"left on {self.received.name} after step {step}; start again to go on from there")

    def __enter__(self) -> Self:
        """Handle the signals whose default would end this process. Only a main thread can."""
        if threading.current_thread() is threading.main_thread():
            for number in filter(_ends_process, _SIGNALS):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._before.items():
                signal.signal(number, handler)
            self._before.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """The first is noted. A second one, or one to a process that was forked from this one, does what it did."""
        asked = signal.Signals(number)
        if self.received is not None or os.getpid() != self._pid:
            signal.signal(number, self._before.get(asked, signal.SIG_DFL))
            os.kill(os.getpid(), number)
            return
        self.received = asked
        # Neither print nor a logger may be entered here: the signal may have come while it was at work.
        os.write(2, f"{asked.name}: finishing the step and saving; once more ends it at once\n".encode())


def _ends_process(number: signal.Signals) -> bool:
    handler = signal.getsignal(number)
    if handler is signal.default_int_handler:
        return True
    return handler is signal.SIG_DFL and not _caught_in_c(number)


def _caught_in_c(number: signal.Signals) -> bool:
    """Whether a library has put its own handler there, as faulthandler does, of which Python knows nothing."""
    if not _STATUS.exists():
        return False
    masks = dict(line.split(":\t") for line in _STATUS.read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(masks.get("SigCgt", "0"), 16) >> (number - 1) & 1)
