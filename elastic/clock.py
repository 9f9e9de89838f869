"""Time as an argument: the one place that reads the machine's clocks or sleeps."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What code that needs time is given. Seconds as float."""

    def monotonic_s(self) -> float:
        """Seconds of a clock that never goes back; comparable within this machine only."""
        ...

    def wall_s(self) -> float:
        """Seconds since 1970, for people and logs; never compared between machines."""
        ...

    def sleep(self, seconds: float) -> None:
        """Do nothing for so long."""
        ...


class SystemClock:
    """The machine's clocks. CLOCK_BOOTTIME goes on while a machine is suspended, as a lease does."""

    def monotonic_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall_s(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class ManualClock:
    """A clock that a test moves: `sleep` moves it too, so nothing waits."""

    def __init__(self, start_s: float = 0.0) -> None:
        self.now_s = start_s

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


SYSTEM_CLOCK: Clock = SystemClock()


def thread_cpu_s() -> float:
    """What this thread has used of the CPU, the kernel's work for it included; tells work from waiting."""
    return time.thread_time()
