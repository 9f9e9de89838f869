"""News: what the leader waits for. Of thousands that are on their way, no single one is worth a look."""

from __future__ import annotations

import threading
from collections.abc import Callable


class News:
    """One thread waits, any may tell. `unread` says how many members wrote since the leader last read."""

    def __init__(self, *, unread: Callable[[], int]) -> None:
        self._unread = unread
        self._changed = threading.Condition()
        self._rung = False
        self._enough = 1

    def ring(self) -> None:
        """Something that is to be looked at now."""
        with self._changed:
            self._rung = True
            self._changed.notify_all()

    def written(self) -> None:
        """Members wrote."""
        with self._changed:
            if self._unread() >= self._enough:
                self._changed.notify_all()

    def hush(self) -> None:
        """What was rung for is about to be looked at."""
        with self._changed:
            self._rung = False

    def wait(self, limit_s: float | None, *, enough: int = 1) -> bool:
        """Return when it rings or so many members have written; False: after the time."""
        with self._changed:
            self._enough = enough
            return self._changed.wait_for(lambda: self._rung or self._unread() >= enough, timeout=limit_s)
