"""Follow a run's events as they are written, and wait for one with a deadline. Linux inotify, no polling."""

from __future__ import annotations

import ctypes
import os
import select
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from elastic.clock import SYSTEM_CLOCK, Clock
from elastic.errors import ElasticError
from elastic.events import Record, decode, few_of

_IN_MODIFY = 0x2
_IN_CREATE = 0x100


class NotSeen(ElasticError):
    """What was waited for did not happen before the deadline."""


class Follower:
    """All records of a run, in the order in which they were read. A context manager.

    Args:
        directory: the run's `events` directory; made if it is not there yet.
        on_record: called once for each record as it comes.
        on_unreadable: told of a line that is no record and of a file that cannot be read, which are then passed over;
            without, they are a ValueError and an OSError.
        few_steps: leave out most steps where one reading finds many, as `merged_records` does.
    """

    def __init__(
        self,
        directory: Path,
        *,
        on_record: Callable[[Record], None] | None = None,
        on_unreadable: Callable[[str], None] | None = None,
        few_steps: bool = False,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.records: list[Record] = []
        self._directory = directory
        self._on_record = on_record
        self._on_unreadable = on_unreadable
        self._few_steps = few_steps
        self._clock = clock
        self._offsets: dict[Path, int] = {}
        self._unread: set[Path] = set()
        directory.mkdir(parents=True, exist_ok=True)
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "cannot watch files: no more inotify instances")
        if libc.inotify_add_watch(self._fd, os.fsencode(directory), _IN_MODIFY | _IN_CREATE) < 0:
            number = ctypes.get_errno()
            os.close(self._fd)
            raise OSError(number, f"cannot watch {directory}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._fd)

    def wait_for(
        self,
        test: Callable[[Record], bool],
        *,
        what: str,
        limit_s: float,
        since: int = 0,
        alive: Callable[[], None] | None = None,
    ) -> Record:
        """The first record from number `since` on that passes the test.

        Args:
            what: names it in the error.
            alive: called each second while waiting; raises an ElasticError when waiting has become pointless.

        Raises:
            NotSeen: none came within the limit.
        """
        until_s = self._clock.monotonic_s() + limit_s
        at = since
        while True:
            pointless = _raised(alive)
            self.read()  # after that question: what was written before the last node ended still counts
            for record in self.records[at:]:
                if test(record):
                    return record
            at = len(self.records)
            if pointless is not None:
                raise pointless
            left_s = until_s - self._clock.monotonic_s()
            if left_s <= 0:
                raise NotSeen(f"{what} did not happen within {limit_s:.0f} s; last seen: {self._tail()}")
            self.wait(limit_s=min(left_s, 1.0))

    def wait(self, *, limit_s: float) -> None:
        """Return when something was written, or after the limit."""
        select.select([self._fd], [], [], limit_s)

    def read(self) -> None:
        """Take in what was written since the last call."""
        try:
            while os.read(self._fd, 65536):
                pass
        except BlockingIOError:
            pass
        for path in sorted(self._directory.glob("*.jsonl")):
            self._read_file(path)

    def _read_file(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                data = file.read()
        except OSError as error:
            self._cannot_read(path, error)
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._offsets[path] = self._offsets.get(path, 0) + len(whole)
        lines = enumerate(whole.decode(errors="replace").splitlines())
        for _, line in few_of(lines) if self._few_steps else lines:
            record = self._decode(line)
            if record is not None:
                self.records.append(record)
                if self._on_record is not None:
                    self._on_record(record)

    def _cannot_read(self, path: Path, error: OSError) -> None:
        """One node's file must not hide what the others say; it is told of once, and tried again each time."""
        if self._on_unreadable is None:
            raise error
        if path not in self._unread:
            self._unread.add(path)
            self._on_unreadable(f"{path}: {error.strerror}")

    def _decode(self, line: str) -> Record | None:
        try:
            return decode(line)
        except ValueError as error:
            if self._on_unreadable is None:
                raise
            self._on_unreadable(str(error))
            return None

    def _tail(self) -> str:
        return "; ".join(f"{r.node}/{r.rank} {r.event.kind}" for r in self.records[-5:]) or "nothing"


def _raised(alive: Callable[[], None] | None) -> ElasticError | None:
    try:
        if alive is not None:
            alive()
    except ElasticError as error:
        return error
    return None
