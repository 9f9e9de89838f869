"""Stores for workers: a fresh TCPStore for each generation, on the address that reaches etcd and on no other."""

from __future__ import annotations

from datetime import timedelta

from torch.distributed import HashStore, Store, TCPStore  # type: ignore[attr-defined]  # torch names no exports

from elastic.rendezvous.probe import listen_on

TIMEOUT_S = 30.0
"""For a request to a store: long enough for workers that start one after the other, in seconds instead of minutes."""


class TorchHostedStore:
    """A TCPStore that this process serves. Torch ends it when the last reference is gone."""

    def __init__(self, address: str) -> None:
        listener = listen_on(address, backlog=1024)
        self.port: int = listener.getsockname()[1]
        self._store: Store | None = TCPStore(
            address,
            self.port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=TIMEOUT_S),
            master_listen_fd=listener.detach(),
        )

    @property
    def store(self) -> Store | None:
        """The store; None once closed."""
        return self._store

    def close(self) -> None:
        """Let go of it."""
        self._store = None


class TorchStores:
    """Opens TCPStores; a StoreHost."""

    def open(self, address: str) -> TorchHostedStore:
        """One that listens on a free port of this address."""
        return TorchHostedStore(address)

    def private(self) -> Store:
        """One of this process alone."""
        return HashStore()


def connect(address: str, port: int) -> Store:
    """A client of another agent's store.

    Raises:
        torch.distributed.DistError: nobody answers there.
    """
    return TCPStore(address, port, is_master=False, timeout=timedelta(seconds=TIMEOUT_S))
