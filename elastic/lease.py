"""Lease page: until when this node's lease certainly holds, in a few bytes that agent, keeper and workers share.

An agent that cannot reach etcd cannot tell an outage from having been cut off and replaced. Its workers go on, but
publish nothing once the page says that the lease may have ended, or that a newer generation exists.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

_SIZE_BYTES = 3 * 8
_GENERATION = 0
AGENT, KEEPER = 1, 2
"""Who renews the lease: each has a place of its own, and the later word holds."""

_NS = 1_000_000_000
_MARGIN = 0.1
"""Share of the lease that is not relied upon: for clocks that run at different speeds."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Whether this node may publish, and why (not). `stale`: a newer generation exists. `lapsed_s`: since when not."""

    holds: bool
    reason: str
    stale: bool = False
    lapsed_s: float = 0.0


def standing(*, generation: int, newest: int, valid_until_s: float, now_s: float) -> Standing:
    """What the page's two facts mean for a worker of `generation`. Pure; 0 for `newest` means that none is known."""
    if newest > generation:
        reason = f"this worker belongs to generation {generation}, its agent knows of {newest}"
        return Standing(holds=False, reason=reason, stale=True)
    if now_s < valid_until_s:
        return Standing(holds=True, reason=f"the lease holds for {valid_until_s - now_s:.1f} s more")
    lapsed_s = now_s - valid_until_s
    since = f"for {lapsed_s:.1f} s" if valid_until_s else "since it ended"
    return Standing(holds=False, reason=f"this node's lease is unconfirmed {since}", lapsed_s=lapsed_s)


def certain_until_s(*, sent_s: float, granted_s: float) -> float:
    """Until when a renewal certainly lasts: etcd counts from when it heard of it, which is not before it was sent."""
    return sent_s + granted_s * (1 - _MARGIN)


class LeasePage:
    """The shared bytes. Times are of the boot-time clock (`Clock.monotonic_s`), the same in all processes of a node."""

    def __init__(self, path: Path) -> None:
        """Map the page that `create` made. Raises OSError."""
        self.path = path
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._bytes = mmap.mmap(fd, _SIZE_BYTES)
            self._words = memoryview(self._bytes).cast("q")
        finally:
            os.close(fd)

    @classmethod
    def create(cls) -> LeasePage:
        """Make one that only this user may read; it says that nothing is certain."""
        fd, path = tempfile.mkstemp(prefix="elastic-lease-")
        os.write(fd, bytes(_SIZE_BYTES))
        os.close(fd)
        return cls(Path(path))

    @property
    def generation(self) -> int:
        """The newest generation that the agent knows of; 0 before the first."""
        return self._read(_GENERATION)

    @generation.setter
    def generation(self, number: int) -> None:
        self._write(_GENERATION, number)

    @property
    def valid_until_s(self) -> float:
        """Until when the lease certainly holds; 0.0 where nothing is certain."""
        return max(self._read(AGENT), self._read(KEEPER)) / _NS

    def extend(self, who: int, *, until_s: float) -> None:
        """A renewal was answered. `who`: AGENT or KEEPER."""
        self._write(who, int(until_s * _NS))

    def end(self) -> None:
        """The lease has ended, whoever was told."""
        self._write(AGENT, 0)
        self._write(KEEPER, 0)

    def standing(self, *, generation: int, now_s: float) -> Standing:
        """Whether a worker of this generation may publish now."""
        return standing(generation=generation, newest=self.generation, valid_until_s=self.valid_until_s, now_s=now_s)

    def close(self) -> None:
        """Unmap it."""
        self._words.release()
        self._bytes.close()

    def remove(self) -> None:
        """Unmap it and take it away; for the one who made it."""
        self.close()
        self.path.unlink(missing_ok=True)

    def _read(self, place: int) -> int:
        return self._words[place]

    def _write(self, place: int, number: int) -> None:
        # Eight aligned bytes in one store: no reader sees half of them. `struct.pack_into` would clear them first.
        self._words[place] = number
