"""Arrivals: how many bytes of a state came to this rank by which way, and how long moving them took."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from elastic.clock import Clock

MEMORY, PEER, DISK = "memory", "peer", "disk"

Count = Callable[[int], None]
"""Called with each piece's size in bytes, once all of it is there."""


def nowhere(size_bytes: int) -> None:
    """A Count for what is no state, or was counted already."""


@dataclass(frozen=True, kw_only=True)
class Arrived:
    """By tier, in order: (tier, bytes, seconds). `givers`: the ranks that the bytes of tier "peer" came from."""

    ways: tuple[tuple[str, int, float], ...] = ()
    givers: tuple[int, ...] = ()


class Arrivals:
    """One for each worker: adds up, through tries that fail, until it is told. Not for several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ways: dict[str, tuple[int, float]] = {}
        self._givers: set[int] = set()

    def begin(self, tier: str, *, givers: Iterable[int] = ()) -> Count:
        """Something is to come that way from now on. A wait at whose end nothing came is never counted."""
        since_s = self._clock.monotonic_s()

        def count(size_bytes: int) -> None:
            nonlocal since_s
            now_s = self._clock.monotonic_s()
            before_bytes, before_s = self._ways.get(tier, (0, 0.0))
            self._ways[tier] = before_bytes + size_bytes, before_s + now_s - since_s
            if size_bytes:
                self._givers.update(givers)
            since_s = now_s

        return count

    def told(self) -> Arrived:
        """All of it since this was asked last."""
        ways = ((tier, size_bytes, seconds) for tier, (size_bytes, seconds) in self._ways.items() if size_bytes)
        found = Arrived(ways=tuple(sorted(ways)), givers=tuple(sorted(self._givers)))
        self._ways, self._givers = {}, set()
        return found
