"""Memory that begins where huge pages can, and is made of such pages where the machine has them at hand.

Small pages cost a fault each when a new process maps them, which for a whole state takes longer than copying it, and
huge ones are had ten times as fast. The system's settings seldom give them to shared memory unasked, but it makes them
when told to (MADV_COLLAPSE). That is dear where memory must first be put together, or where a virtual machine gets it
from its host only then; so whoever asks gives up soon.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable

from elastic.clock import thread_cpu_s

HUGE_BYTES = 2 << 20
_PROT_READ, _PROT_WRITE, _MAP_FIXED, _MAP_NORESERVE = 1, 2, 0x10, 0x4000
_MADV_POPULATE_WRITE, _MADV_COLLAPSE = 23, 25
_SLOW_S = 0.0015
"""CPU time in which as much is had in small pages for certain."""
_SLOW_TRIES = 2
_WORTH_BYTES = 16 * HUGE_BYTES
"""Less is had in small pages before anybody notices."""

Advise = Callable[[int, int, int], bool]
"""madvise: address, length, advice; whether it was taken."""


class Mapping:
    """The first bytes of a file, or memory of this process alone. It lasts as long as anything that points into it."""

    def __init__(self, fd: int | None, size_bytes: int) -> None:
        """`fd`: None: no file. `size_bytes`: at least 1. Raises OSError."""
        self.size_bytes, self._alone = size_bytes, fd is None
        self._libc = libc = _libc()
        self._address = _map(fd, size_bytes, libc)
        held = (ctypes.c_char * size_bytes).from_address(self._address)
        # Not at the interpreter's end: others may still look into it then.
        weakref.finalize(held, libc.munmap, self._address, size_bytes).atexit = False
        self.data = memoryview(held).cast("B")
        self._populated = False

    def populate(
        self, *, fresh: bool = False, advise: Advise | None = None, cpu_s: Callable[[], float] = thread_cpu_s
    ) -> None:
        """Get all pages at once, before they are written: a fault for each would cost as much as the copy.

        `fresh`: whether there are none yet, so that they may come as huge ones. Of memory of this process alone the
        rest is left to come as it is filled, or it would be gone through twice.
        """
        if self._populated:
            return
        self._populated = True
        advise = advise or self._advise
        if fresh and self.size_bytes >= _WORTH_BYTES:
            self._ask_for_huge_pages(advise, cpu_s)
        if not self._alone:
            advise(self._address, self.size_bytes, _MADV_POPULATE_WRITE)  # the rest; a kernel before 5.14 cannot

    def _ask_for_huge_pages(self, advise: Advise, cpu_s: Callable[[], float]) -> None:
        """One at a time at first, two where that went well: each request costs all processors something."""
        at = good = slow = 0
        while at + (pages := 2 if good >= 4 and not slow else 1) * HUGE_BYTES <= self.size_bytes:
            begun_s = cpu_s()
            for page in range(pages):
                self._touch(at + page * HUGE_BYTES)
            if not advise(self._address + at, pages * HUGE_BYTES, _MADV_COLLAPSE):
                return  # a kernel before 6.1, or there are none to be had
            good, slow = (good + 1, slow) if cpu_s() - begun_s < _SLOW_S * pages else (good, slow + 1)
            if slow >= _SLOW_TRIES:
                return
            at += pages * HUGE_BYTES

    def _touch(self, at: int) -> None:
        """Of nothing at all no huge page is made, and of nothing written none of a process's own."""
        found = self.data[at]
        if self._alone:
            self.data[at] = found

    def _advise(self, address: int, size_bytes: int, advice: int) -> bool:
        return bool(self._libc.madvise(address, size_bytes, advice) == 0)


def _map(fd: int | None, size_bytes: int, libc: ctypes.CDLL) -> int:
    """Where it lies then. What is reserved first is more, so that a border of huge pages is in it."""
    reserved = libc.mmap(
        None, size_bytes + HUGE_BYTES, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, -1, 0
    )
    if reserved == _FAILED:
        raise _error()
    begin = -(-reserved // HUGE_BYTES) * HUGE_BYTES
    end = begin + -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    for first, last in ((reserved, begin), (end, reserved + size_bytes + HUGE_BYTES)):
        if first < last:
            libc.munmap(first, last - first)
    kind = mmap.MAP_SHARED if fd is not None else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    found = libc.mmap(begin, size_bytes, _PROT_READ | _PROT_WRITE, kind | _MAP_FIXED, -1 if fd is None else fd, 0)
    if found == _FAILED:
        error = _error()
        libc.munmap(begin, size_bytes)
        raise error
    return int(found)


_FAILED = ctypes.c_void_p(-1).value


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    number, length = ctypes.c_int, ctypes.c_size_t
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, length, number, number, number, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, length]
    libc.madvise.argtypes = [ctypes.c_void_p, length, number]
    return libc


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
