"""Activity: what a worker is doing and since when, in a few shared bytes that its agent reads at any time.

Nobody has to be asked: a worker that hangs answers no more, even where it holds the interpreter's lock. The agent makes
the bytes, one place for each of its workers, so that what was learned of how long things take outlives them.
"""

from __future__ import annotations

import enum
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from elastic.clock import SYSTEM_CLOCK, Clock
from elastic.world import World

Item = TypeVar("Item")


class Doing(enum.IntEnum):
    """What a worker may be doing. All but WAITING is its own to end."""

    STARTING = 0
    """Whatever comes before its first step and after its last one, and between two generations."""
    STEP = 1
    """Computing a step."""
    DATA = 2
    """Waiting for the next micro-batch."""
    WAITING = 3
    """Inside a collective: others are awaited."""
    EVALUATION = 4
    SAVE = 5
    """Copying the state, and what else belongs to a boundary but a disk."""
    BETWEEN = 6
    """Between two steps: the user's own."""
    FIRST = 7
    """Computing the first step of a generation, in which a program may be compiled anew."""
    FLUSH = 8
    """A save: a disk is, or may be, awaited."""


@dataclass(frozen=True, kw_only=True)
class Times:
    """How often something was done to its end, and how long it took: at most, and in all.

    Of `longest_s` old times count less and less.
    """

    count: int
    longest_s: float
    total_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One worker at one moment. `pid` is 0 where none has said anything yet."""

    pid: int
    doing: Doing
    since_s: float
    times: tuple[Times, ...]
    """By the number of what was done."""


_PID, _DOING, _SINCE = range(3)  # since: ns
_COUNT, _LONGEST, _TOTAL = range(3)  # ns; of each row
_ROW = 3
_WORD_BYTES = 8
SIZE_BYTES = _WORD_BYTES * _ROW * (1 + len(Doing))
_NS = 1_000_000_000
_FADING = 0.9


class Activity:
    """Where one worker says what it does; without a page, as without an agent of ours, nothing is noted."""

    def __init__(self, page: ActivityPage | None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._page, self._clock = page, clock

    @classmethod
    def of(cls, world: World) -> Activity:
        """This worker's, on the page that its agent made for it."""
        return cls(ActivityPage.open(world.watched_by[0]) if world.watched_by else None)

    def begin(self, doing: Doing) -> None:
        """Do this from now on; what was done until now has come to its end."""
        if self._page is not None:
            self._page.begin(doing, pid=os.getpid(), now_s=self._clock.monotonic_s())

    def total_s(self, doing: Doing) -> float | None:
        """How long this was done in all; None where nothing is noted."""
        return None if self._page is None else self._page.total_s(doing)

    @contextmanager
    def during(self, doing: Doing) -> Iterator[None]:
        """Do this inside the `with`, and then what was done before, as if that began anew."""
        if self._page is None:
            yield
            return
        before = self._page.doing
        self.begin(doing)
        try:
            yield
        finally:
            self.begin(before)

    def each(self, items: Iterable[Item], doing: Doing) -> Iterator[Item]:
        """The items; it is done while the next one is awaited."""
        source = iter(items)
        while True:
            with self.during(doing):
                try:
                    item = next(source)
                except StopIteration:
                    return
            yield item


class ActivityPage:
    """The words of one worker, written by that worker alone, each in one store: a reader sees it before or after.

    `struct.pack_into` would not do: it clears the bytes first, and whoever looks then sees a worker that has done the
    same since the machine was started.
    """

    def __init__(self, fd: int) -> None:
        """Map a file of SIZE_BYTES."""
        self._bytes = mmap.mmap(fd, SIZE_BYTES)
        self._words = memoryview(self._bytes).cast("q")

    @classmethod
    def open(cls, path: str) -> ActivityPage:
        """Map the one at this path. Raises OSError."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return cls(fd)
        finally:
            os.close(fd)

    @property
    def doing(self) -> Doing:
        """What is being done now."""
        return Doing(self._words[_DOING])

    def total_s(self, doing: Doing) -> float:
        """How long this was done in all."""
        return self._words[_row(doing) + _TOTAL] / _NS

    def begin(self, doing: Doing, *, pid: int, now_s: float) -> None:
        """Something else is done from now on."""
        now, words = int(now_s * _NS), self._words
        if words[_PID] == pid:
            row, took = _row(words[_DOING]), now - words[_SINCE]
            words[row + _LONGEST] = max(took, int(_FADING * words[row + _LONGEST]))
            words[row + _TOTAL] += took
            words[row + _COUNT] += 1
        # The moment first: whoever looks in between takes the old thing for younger than it is.
        words[_SINCE] = now
        words[_DOING] = doing
        words[_PID] = pid

    def seen(self) -> Seen:
        """What it says now."""
        words = self._words
        rows = (words[_row(each) : _row(each) + _ROW] for each in Doing)
        times = tuple(Times(count=n, longest_s=longest / _NS, total_s=total / _NS) for n, longest, total in rows)
        # The moment last, for the same reason.
        pid, doing = words[_PID], Doing(words[_DOING])
        return Seen(pid=pid, doing=doing, since_s=words[_SINCE] / _NS, times=times)

    def close(self) -> None:
        """Unmap it."""
        self._words.release()
        self._bytes.close()


def _row(doing: int) -> int:
    """Where the row of what is done begins; the first one is the head."""
    return _ROW * (1 + doing)
