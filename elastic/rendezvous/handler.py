"""Handler: the rendezvous as torchelastic knows it. Our agent uses the coordinator behind it directly.

With torch's own agent it works too: with cold restarts, and with torch's own counting of restarts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn

from torch.distributed import DistError, PrefixStore  # type: ignore[attr-defined]  # torch names no exports
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from elastic.errors import ElasticError, Preempted, StoreUnavailable
from elastic.rendezvous.coordinator import Coordinator, JobClosed, Membership
from elastic.rendezvous.drain import DrainWatch
from elastic.rendezvous.torch_store import connect

_CLOSED_S = 10.0


class EtcdV3Handler(RendezvousHandler):
    """Answers torchelastic's questions from a coordinator. `close_store` ends the link to etcd."""

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        backend: str,
        endpoint: str,
        close_store: Callable[[], None],
        drain: DrainWatch | None = None,
    ) -> None:
        self.coordinator = coordinator
        self.drain = drain
        """Hears of a person's wish that this node leave; whoever runs the workers starts it and acts on it."""
        self.endpoint = endpoint
        self._backend = backend
        self._close_store = close_store
        self._started = False
        self._closed = False

    @property
    def use_agent_store(self) -> bool:
        """Workers connect to the store that the agent of seat 0 serves."""
        return True

    def get_backend(self) -> str:
        """The name that was asked for: torch compares."""
        return self._backend

    def get_run_id(self) -> str:
        """The job id."""
        return self.coordinator.options.job_id

    def next_rendezvous(self) -> RendezvousInfo:
        """Join the next generation.

        Raises:
            RendezvousClosedError, RendezvousTimeoutError, RendezvousConnectionError: in torch's words.
        """
        try:
            if not self._started:
                self.coordinator.start()
                self._started = True
            return self._info(self.coordinator.join())
        except ElasticError as error:
            self._translate(error)
        except DistError as error:
            raise RendezvousConnectionError(f"the store of the new generation does not answer: {error}") from error

    def num_nodes_waiting(self) -> int:
        """1 if this agent's generation is over: torch's agent then restarts its workers. Never blocks, never raises."""
        return int(self.coordinator.regroup() is not None)

    def is_closed(self) -> bool:
        """Whether the job is over."""
        return self._closed

    def set_closed(self) -> None:
        """Nothing: one agent's end is not the job's. It is closed when all are done, or by the budget."""

    def shutdown(self) -> bool:
        """Take this agent out. Only an end in success counts for the job; after an error the others go on."""
        if self._started:
            if sys.exc_info()[0] is None and not self._closed:
                self.coordinator.done()
                self.coordinator.wait_closed(_CLOSED_S)
            self.coordinator.stop()
            self._started = False
        self._close_store()
        return True

    def _info(self, membership: Membership) -> RendezvousInfo:
        place = (membership.store_address, membership.store_port)
        store = membership.store if membership.seat.group_rank == 0 else connect(*place)
        return RendezvousInfo(
            PrefixStore("agents/", store),
            membership.seat.group_rank,
            membership.world.nodes,
            RendezvousStoreInfo(master_addr=place[0], master_port=place[1]),
        )

    def _translate(self, error: ElasticError) -> NoReturn:
        if isinstance(error, JobClosed):
            self._closed = True
            raise RendezvousClosedError(str(error)) from error
        if isinstance(error, Preempted):
            raise RendezvousTimeoutError(str(error)) from error
        if isinstance(error, StoreUnavailable):
            raise RendezvousConnectionError(str(error)) from error
        raise error
