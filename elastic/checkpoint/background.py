"""Work beside the training: in a thread of its own, or at once where nobody may go on before it is done.

A thread, not a process: what takes long (write, fsync, checksums) happens outside of the interpreter's lock, and the
images lie in memory that a process would first have to be given.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Pending(Protocol[T_co]):
    """Something that is being worked out."""

    def done(self) -> bool:
        """Whether it is there."""
        ...

    def result(self) -> T_co:
        """Wait for it. Raises what the work raised."""
        ...


class Start(Protocol):
    """How work is begun."""

    def __call__(self, work: Callable[[], Any]) -> Pending[Any]: ...


def at_once(work: Callable[[], T]) -> Pending[T]:
    """Do it now."""
    future: Future[T] = Future()
    future.set_result(work())
    return future


def in_thread(work: Callable[[], T]) -> Pending[T]:
    """Do it beside the caller. A process that ends does not wait for it."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - because it is raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=run, name="elastic-save", daemon=True).start()
    return future
