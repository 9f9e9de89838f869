"""Hosting: the stores that this agent offers to workers, one for the present generation and one for the next."""

from __future__ import annotations

from typing import Any

from elastic.rendezvous.membership import HostedStore, StoreHost


class Hosting:
    """`offer` before a generation, `enter` with it, `close` at the end."""

    def __init__(self, stores: StoreHost, *, address: str) -> None:
        self._stores, self._address = stores, address
        self._next: HostedStore | None = None
        self._current: HostedStore | None = None

    def offer(self) -> int:
        """The port on which a store listens for the next generation."""
        if self._next is None:
            self._next = self._stores.open(self._address)
        return self._next.port

    def enter(self, *, hosts: bool) -> Any:
        """What torch's parts of the agent are given in a generation; `hosts`: its workers use the store offered."""
        if self._current is not None:
            self._current.close()
            self._current = None
        if hosts:
            self._current, self._next = self._next, None
        return self._stores.private() if self._current is None else self._current.store

    def close(self) -> None:
        """Offer none any more."""
        for hosted in (self._next, self._current):
            if hosted is not None:
                hosted.close()
        self._next = self._current = None
