"""Activity: what a worker is doing and since when, in a few shared bytes that its agent reads at any time.

Nobody has to be asked: a worker that hangs answers no more, even where it holds the interpreter's lock. The agent makes
the bytes, one place for each of its workers, so that what was learned of how long things take outlives them.
"""

from __future__ import annotations

import enum
import mmap
import os
import struct
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


_HEAD = struct.Struct("<qqq")  # pid, doing, since (ns)
_ROW = struct.Struct("<qqq")  # count, longest (ns), total (ns)
SIZE_BYTES = _HEAD.size + len(Doing) * _ROW.size
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
    """The bytes of one worker, written by that worker alone."""

    def __init__(self, fd: int) -> None:
        """Map a file of SIZE_BYTES."""
        self._bytes = mmap.mmap(fd, SIZE_BYTES)

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
        return Doing(_HEAD.unpack_from(self._bytes)[1])

    def total_s(self, doing: Doing) -> float:
        """How long this was done in all."""
        return float(_ROW.unpack_from(self._bytes, _HEAD.size + doing * _ROW.size)[2]) / _NS

    def begin(self, doing: Doing, *, pid: int, now_s: float) -> None:
        """Something else is done from now on."""
        now = int(now_s * _NS)
        owner, before, since = _HEAD.unpack_from(self._bytes)
        if owner == pid:
            place = _HEAD.size + before * _ROW.size
            count, longest, total = _ROW.unpack_from(self._bytes, place)
            took = now - since
            _ROW.pack_into(self._bytes, place, count + 1, max(took, int(_FADING * longest)), total + took)
        _HEAD.pack_into(self._bytes, 0, pid, doing, now)

    def seen(self) -> Seen:
        """What it says now."""
        pid, doing, since = _HEAD.unpack_from(self._bytes)
        rows = (_ROW.unpack_from(self._bytes, _HEAD.size + each * _ROW.size) for each in Doing)
        times = tuple(Times(count=n, longest_s=longest / _NS, total_s=total / _NS) for n, longest, total in rows)
        return Seen(pid=pid, doing=Doing(doing), since_s=since / _NS, times=times)

    def close(self) -> None:
        """Unmap it."""
        self._bytes.close()
