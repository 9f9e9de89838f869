"""The process group of one generation: join, the few collectives that we use, leave.

Collectives carry tensors and JSON, never pickled objects.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
import torch.distributed as dist

from elastic.distributed import cuda
from elastic.distributed.peers import peer_errors
from elastic.errors import UsageError
from elastic.world import World

STORE_TIMEOUT_S = 30.0
"""For meeting the others. The agents have agreed already, so whoever is missing for so long is gone."""
COLLECTIVE_TIMEOUT_S = 1800.0
"""For one collective; a peer may evaluate or compile meanwhile. Lost peers are noticed by their sockets."""


class Pending(Protocol):
    """A collective under way."""

    def wait(self) -> None:
        """Return when it is done here. Raises PeerLost."""
        ...


class Collectives(Protocol):
    """What training needs of the others. Every method but `leave` raises PeerLost when one of them is gone."""

    rank: int
    size: int

    def sum_(self, tensor: torch.Tensor) -> None:
        """Add up a contiguous tensor over all ranks, in place."""
        ...

    def start_sum(self, tensor: torch.Tensor) -> Pending:
        """Begin `sum_`; the tensor must be left alone until the end of it."""
        ...

    def start_exchange(
        self, received: torch.Tensor, sent: torch.Tensor, *, takes: Sequence[int], gives: Sequence[int]
    ) -> Pending:
        """Begin to send everybody a piece of `sent` and to fill `received` with everybody's, by rank.

        Args:
            takes, gives: elements from and to each rank; both tensors have one axis.
        """
        ...

    def start_collect(self, whole: torch.Tensor, piece: torch.Tensor) -> Pending:
        """Begin to fill `whole` with the pieces of all ranks, which are equally long."""
        ...

    def broadcast_(self, tensor: torch.Tensor) -> None:
        """Make a contiguous tensor equal to rank 0's, in place."""
        ...

    def gather(self, value: Any) -> list[Any] | None:
        """JSON values of all ranks, in rank order, on rank 0; None elsewhere."""
        ...

    def broadcast(self, value: Any = None) -> Any:
        """Rank 0's JSON value, everywhere."""
        ...

    def leave(self) -> None:
        """Give up the group. Never raises."""
        ...


class Done:
    """`Pending` that is over."""

    def wait(self) -> None:
        """Nothing to wait for."""


class _Work:
    """`Pending` of torch.distributed."""

    def __init__(self, work: Any, *, doing: str) -> None:
        self._work, self._doing = work, doing

    def wait(self) -> None:
        with peer_errors(self._doing):
            self._work.wait()


class Alone:
    """A world of one: nothing to send."""

    rank = 0
    size = 1

    def sum_(self, tensor: torch.Tensor) -> None:
        """The sum over one rank is the tensor itself."""

    def start_sum(self, tensor: torch.Tensor) -> Pending:
        return Done()

    def start_exchange(
        self, received: torch.Tensor, sent: torch.Tensor, *, takes: Sequence[int], gives: Sequence[int]
    ) -> Pending:
        received.copy_(sent)
        return Done()

    def start_collect(self, whole: torch.Tensor, piece: torch.Tensor) -> Pending:
        whole.copy_(piece)
        return Done()

    def broadcast_(self, tensor: torch.Tensor) -> None:
        """Already equal to rank 0's."""

    def gather(self, value: Any) -> list[Any] | None:
        return [value]

    def broadcast(self, value: Any = None) -> Any:
        return value

    def leave(self) -> None:
        """There is no group."""


class TorchGroup:
    """A torch.distributed group over the store that the agents made for this generation."""

    def __init__(self, world: World) -> None:
        self.rank = world.rank
        self.size = world.size
        self._device = torch.device("cpu")

    def sum_(self, tensor: torch.Tensor) -> None:
        self.start_sum(tensor).wait()

    def start_sum(self, tensor: torch.Tensor) -> Pending:
        with peer_errors("summing gradients"):
            return _Work(dist.all_reduce(tensor, async_op=True), doing="summing gradients")

    def start_exchange(
        self, received: torch.Tensor, sent: torch.Tensor, *, takes: Sequence[int], gives: Sequence[int]
    ) -> Pending:
        with peer_errors("exchanging gradients"):
            work = dist.all_to_all_single(received, sent, list(takes), list(gives), async_op=True)
        return _Work(work, doing="exchanging gradients")

    def start_collect(self, whole: torch.Tensor, piece: torch.Tensor) -> Pending:
        with peer_errors("collecting gradients"):
            work = dist.all_gather_single(whole, piece, async_op=True)
        return _Work(work, doing="collecting gradients")

    def broadcast_(self, tensor: torch.Tensor) -> None:
        with peer_errors("copying parameters from rank 0"):
            dist.broadcast(tensor, src=0)

    def gather(self, value: Any) -> list[Any] | None:
        data = _to_bytes(value)
        with peer_errors("gathering"):
            sizes = torch.zeros(self.size, dtype=torch.int64)
            sizes[self.rank] = data.numel()
            dist.all_reduce(sizes)
            width = max(1, int(sizes.max()))
            padded = torch.zeros(width, dtype=torch.uint8)
            padded[: data.numel()] = data
            rows = [torch.empty_like(padded) for _ in range(self.size)] if self.rank == 0 else None
            dist.gather(padded, rows, dst=0)
        if rows is None:
            return None
        return [_from_bytes(row[: int(size)]) for row, size in zip(rows, sizes, strict=True)]

    def broadcast(self, value: Any = None) -> Any:
        with peer_errors("waiting for rank 0's word"):
            data = _to_bytes(value) if self.rank == 0 else torch.empty(0, dtype=torch.uint8)
            size = torch.tensor([data.numel()])
            dist.broadcast(size, src=0)
            if self.rank != 0:
                data = torch.empty(int(size), dtype=torch.uint8)
            if int(size):
                dist.broadcast(data, src=0)
        return _from_bytes(data)

    def leave(self) -> None:
        with contextlib.suppress(Exception):  # whatever it says, this process is through with the group
            dist.destroy_process_group()


def _to_bytes(value: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _from_bytes(data: torch.Tensor) -> Any:
    return json.loads(data.numpy().tobytes())


def choose_device(world: World) -> World:
    """The same world with its device: a GPU of its own where there is one, else the CPU."""
    if not cuda.available():
        return replace(world, device="cpu")
    try:
        return replace(world, device=cuda.claim(world.local_rank))
    except IndexError as error:
        raise UsageError(str(error)) from error


def join(world: World, *, environ: Mapping[str, str] = os.environ) -> Collectives:
    """Join this generation's group.

    Raises:
        PeerLost: another member did not come, or the store is gone.
    """
    if not world.distributed:
        return Alone()
    hosted_here = world.rank == 0 and environ.get("TORCHELASTIC_USE_AGENT_STORE") != str(True)
    with peer_errors("the group of this generation formed"):
        store = dist.TCPStore(  # type: ignore[attr-defined]
            environ["MASTER_ADDR"],
            int(environ["MASTER_PORT"]),
            world_size=world.size,
            is_master=hosted_here,
            timeout=datetime.timedelta(seconds=STORE_TIMEOUT_S),
            wait_for_workers=False,
        )
        dist.init_process_group(
            backend="gloo" if world.device == "cpu" else cuda.BACKEND,
            store=dist.PrefixStore(  # type: ignore[attr-defined]
                f"generation-{world.generation}", store
            ),
            rank=world.rank,
            world_size=world.size,
            timeout=datetime.timedelta(seconds=COLLECTIVE_TIMEOUT_S),
        )
    return TorchGroup(world)
