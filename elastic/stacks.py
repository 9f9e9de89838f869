"""Stacks: a worker's Python stacks on demand, even while it holds the interpreter's lock or is deep inside C code.

The worker has faulthandler write them to a file of its agent's when a signal comes: that handler is C and needs no
lock. A real-time signal, since programs and batch systems have uses of their own for the others.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path

from elastic.clock import Clock

SIGNAL = signal.SIGRTMIN + 9
_SLICE_S = 0.01
_QUIET_SLICES = 5


def offer(path: str) -> None:
    """From now on the signal writes this process's stacks to the end of that file. It stays open for good."""
    faulthandler.register(SIGNAL, file=os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC), all_threads=True)


def ask(pid: int, *, fd: int, clock: Clock, limit_s: float = 1.0) -> str:
    """The stacks of a worker that offers them in the file behind `fd`; else a line that says why there are none."""
    if not _offers(pid):
        return "it offers none: it has not come so far, or is gone\n"
    os.ftruncate(fd, 0)
    try:
        os.kill(pid, SIGNAL)
    except ProcessLookupError:
        return "it is gone\n"
    until_s, quiet, size = clock.monotonic_s() + limit_s, 0, 0
    while clock.monotonic_s() < until_s and quiet < _QUIET_SLICES:
        clock.sleep(_SLICE_S)
        before, size = size, os.fstat(fd).st_size
        quiet = quiet + 1 if size and size == before else 0
    return os.pread(fd, size, 0).decode(errors="replace") or "none came: it is stopped, or in an uninterruptible wait\n"


def _offers(pid: int) -> bool:
    """Unhandled, the signal would end it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return False
    caught = next((line.partition(":")[2] for line in lines if line.startswith("SigCgt")), "0")
    return bool(int(caught, 16) >> (SIGNAL - 1) & 1)
