"""Store turns: the stores that an agent hosts for workers, one ready for the next generation, one in use at most."""

from __future__ import annotations

from typing import Any

from elastic.rendezvous.membership import HostedStore, StoreHost


class StoreTurns:
    """Used from the agent's own thread."""

    def __init__(self, host: StoreHost, *, address: str) -> None:
        self._host, self._address = host, address
        self._next: HostedStore | None = None
        self._current: HostedStore | None = None

    def offer(self) -> int:
        """The port of a store that listens for the next generation already."""
        if self._next is None:
            self._next = self._host.open(self._address)
        return self._next.port

    def enter(self, *, serves: bool) -> Any:
        """A generation begins, the last one's store goes. This agent's store in it: the offered one if it `serves`."""
        if self._current is not None:
            self._current.close()
            self._current = None
        if serves:
            self._current, self._next = self._next, None
        return self._host.private() if self._current is None else self._current.store

    def close(self) -> None:
        """Let go of both."""
        for hosted in (self._next, self._current):
            if hosted is not None:
                hosted.close()
        self._next = self._current = None
