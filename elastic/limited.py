"""Limited: work that may meet a disk that stalls, waited for no longer than that. A stalled call cannot be ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def beside(work: Callable[[], T], *, name: str) -> Future[T]:
    """Do it in a thread of this name. The interpreter's end does not wait for it."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - because it is raised where the result is waited for
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def limited(work: Callable[[], T], *, limit_s: float, what: str) -> T:
    """Do it in a thread of its own, which goes on where it is given up. The interpreter's end does not wait for it; the
    kernel's end of the process does, for a call that waits for a disk.

    Raises:
        TimeoutError: it took longer. Names `what`.
        Exception: whatever the work raised.
    """
    future = beside(work, name="elastic-limited")
    try:
        return future.result(limit_s)
    except TimeoutError as error:
        if future.done():
            return future.result()  # at the last moment, or a TimeoutError of the work's own
        raise TimeoutError(f"{what} takes longer than {limit_s:g} s: does the disk stall?") from error
