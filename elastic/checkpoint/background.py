"""Work beside the training: in a thread of its own, or at once where nobody may go on before it is done.

A thread, not a process: what takes long (write, fsync, checksums) happens outside of the interpreter's lock, and the
images lie in memory that a process would first have to be given.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from elastic.limited import beside

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
    return beside(work, name="elastic-save")
