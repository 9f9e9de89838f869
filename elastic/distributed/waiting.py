"""Waiting for a collective of gloo's, which may never hear that its peer is gone.

When a connection ends, gloo tells whoever waits for a message that has not begun. It tells nobody whose message has
come or gone in part: Pair::signalException passes over the one being read and over those queued to be written. That
one would wait for the group's own limit, half an hour, and with it whoever waits for that rank. So a rank that waits
looks now and then whether its group is over, and then waits no more. What it leaves is kept until gloo ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

from elastic.limited import beside

LOOK_S = 0.2
"""How often to look."""
IN_VAIN = 3
"""So many looks on end at a group that is over: what has not ended by then, which takes milliseconds, never will."""

_LOOK = timedelta(seconds=LOOK_S)


class Work(Protocol):
    """One collective, as torch has it."""

    def wait(self, timeout: timedelta = ...) -> Any:
        """Return when it is done. Raises RuntimeError: it failed, or is not done in time."""
        ...

    def is_completed(self) -> bool:
        """Whether it is done, or has failed."""
        ...


class Beside:
    """`Work` of a send or a receive. gloo breaks off the whole group where such a wait has a limit that is reached."""

    def __init__(self, work: Any) -> None:
        self._done: Future[Any] = beside(work.wait, name="elastic-passes-on")

    def wait(self, timeout: timedelta = timedelta.max) -> Any:
        try:
            return self._done.result(None if timeout == timedelta.max else timeout.total_seconds())
        except TimeoutError as error:
            raise RuntimeError("not done yet") from error

    def is_completed(self) -> bool:
        return self._done.done()


def finished(work: Work, *, over: Callable[[], bool]) -> bool:
    """Wait; whether it is done. False where it is not, and the group is `over`.

    Raises:
        RuntimeError: it failed.
    """
    left = IN_VAIN
    while left:
        with suppress(RuntimeError):
            work.wait(_LOOK)
            return True
        if work.is_completed():
            work.wait()  # tells of its failure, if it was not just the look that came to its end
            return True
        left = left - 1 if over() else IN_VAIN
    return False


def unfinished(works: Sequence[Work]) -> list[Work]:
    """Those that have not ended soon, of a group that is over."""
    left: list[Work] = []
    for work in works:
        with suppress(RuntimeError):
            if not (work.is_completed() if left else finished(work, over=lambda: True)):
                left.append(work)
    return left


def keep(works: Sequence[Work], *, group: Any) -> None:
    """Hold what these need until they have ended, in a thread. torch waits for them where it lets go of the group."""

    def wait() -> Any:
        for work in works:
            with suppress(RuntimeError):
                work.wait()
        return group  # what this refers to lives until here

    beside(wait, name="elastic-left-behind")
