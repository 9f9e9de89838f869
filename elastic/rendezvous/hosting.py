"""Hosting: the stores that an agent has listening, one for the generation it is in and one for the next."""

from __future__ import annotations

from typing import Any

from elastic.rendezvous.membership import HostedStore, StoreHost


class Hosting:
    """For one thread."""

    def __init__(self, stores: StoreHost, *, address: str) -> None:
        self._stores, self._address = stores, address
        self._next: HostedStore | None = None
        self._current: HostedStore | None = None

    def offer(self) -> int:
        """The port of the store for the next generation, which listens from now on."""
        if self._next is None:
            self._next = self._stores.open(self._address)
        return self._next.port

    def enter(self, *, first: bool) -> Any:
        """The store to use in the next generation: the one that was offered, if this agent has the first seat."""
        if self._current is not None:
            self._current.close()
            self._current = None
        if first:
            self._current, self._next = self._next, None
        return self._stores.private() if self._current is None else self._current.store

    def close(self) -> None:
        """Listen no more."""
        for hosted in (self._next, self._current):
            if hosted is not None:
                hosted.close()
        self._next = self._current = None
