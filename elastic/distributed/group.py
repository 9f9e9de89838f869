"""The process group of one generation: join, the few collectives that we use, leave.

Collectives carry tensors and JSON, never pickled objects.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from elastic.activity import Activity, Doing
from elastic.distributed.links import Links
from elastic.distributed.peers import peer_errors
from elastic.distributed.teardown import destroy
from elastic.distributed.waiting import Beside, finished, keep, unfinished
from elastic.errors import PeerLost
from elastic.world import World


class Pending(Protocol):
    """A collective under way."""

    def wait(self) -> None:
        """Return when it is done here. Raises PeerLost."""
        ...


class Collectives(Protocol):
    """What training needs of the others. All but `cut` and `leave` raise PeerLost when one of them is gone."""

    rank: int
    size: int

    @property
    def broken(self) -> bool:
        """Whether a peer was lost or the group was cut: every error of it means that, whatever it says."""
        ...

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

    def send(self, tensor: torch.Tensor, *, to: int) -> None:
        """Send a contiguous tensor to a rank that calls `receive_`."""
        ...

    def receive_(self, tensor: torch.Tensor, *, source: int) -> None:
        """Fill a contiguous tensor with what a rank sends."""
        ...

    def cut(self) -> None:
        """Cut this rank off: whatever waits for the others ends in milliseconds, here and where they wait for us.

        From any thread, any number of times. Never raises.
        """
        ...

    def leave(self) -> None:
        """Give up the group, so that this process can join another. Never raises, never waits for a lost peer."""
        ...


class Done:
    """`Pending` that is over."""

    def wait(self) -> None:
        """Nothing to wait for."""


class Alone:
    """A world of one: nothing to send."""

    rank = 0
    size = 1
    broken = False

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

    def send(self, tensor: torch.Tensor, *, to: int) -> None:
        """There is nobody to send to."""

    def receive_(self, tensor: torch.Tensor, *, source: int) -> None:
        """Nobody sends."""

    def cut(self) -> None:
        """There is nobody to be cut off from."""

    def leave(self) -> None:
        """There is no group."""


class TorchGroup:
    """A torch.distributed group over the store that the agents made for this generation."""

    def __init__(
        self, world: World, *, links: Links, excepthook: Callable[..., Any], activity: Activity | None = None
    ) -> None:
        """`links`: what was opened to make it. `excepthook`: the one before torch's, which is put back at the end.
        `activity`: where this rank says that it waits for others."""
        self.rank = world.rank
        self.size = world.size
        self._links = links
        self._excepthook = excepthook
        self._activity = activity or Activity(None)
        self._under_way: set[_Work] = set()

    @property
    def broken(self) -> bool:
        return self._links.is_cut

    def sum_(self, tensor: torch.Tensor) -> None:
        self.start_sum(tensor).wait()

    def start_sum(self, tensor: torch.Tensor) -> Pending:
        return self._start("summing gradients", lambda: dist.all_reduce(tensor, async_op=True), on=tensor)

    def start_exchange(
        self, received: torch.Tensor, sent: torch.Tensor, *, takes: Sequence[int], gives: Sequence[int]
    ) -> Pending:
        return self._start(
            "exchanging gradients",
            lambda: dist.all_to_all_single(received, sent, list(takes), list(gives), async_op=True),
            on=sent,
        )

    def start_collect(self, whole: torch.Tensor, piece: torch.Tensor) -> Pending:
        return self._start(
            "collecting gradients", lambda: dist.all_gather_single(whole, piece, async_op=True), on=piece
        )

    def broadcast_(self, tensor: torch.Tensor) -> None:
        self._copy_from_0(tensor, doing="copying parameters from rank 0")

    def gather(self, value: Any) -> list[Any] | None:
        doing, data = "gathering", _to_bytes(value)
        sizes = torch.zeros(self.size, dtype=torch.int64)
        sizes[self.rank] = data.numel()
        self._start(doing, lambda: dist.all_reduce(sizes, async_op=True), on=sizes).wait()
        width = max(1, int(sizes.max()))
        padded = torch.zeros(width, dtype=torch.uint8)
        padded[: data.numel()] = data
        rows = [torch.empty_like(padded) for _ in range(self.size)] if self.rank == 0 else None
        self._start(doing, lambda: dist.gather(padded, rows, dst=0, async_op=True), on=padded).wait()
        if rows is None:
            return None
        return [_from_bytes(row[: int(size)]) for row, size in zip(rows, sizes, strict=True)]

    def broadcast(self, value: Any = None) -> Any:
        doing = "waiting for rank 0's word"
        data = _to_bytes(value) if self.rank == 0 else torch.empty(0, dtype=torch.uint8)
        size = torch.tensor([data.numel()])
        self._copy_from_0(size, doing=doing)
        if self.rank != 0:
            data = torch.empty(int(size), dtype=torch.uint8)
        if int(size):
            self._copy_from_0(data, doing=doing)
        return _from_bytes(data)

    def send(self, tensor: torch.Tensor, *, to: int) -> None:
        self._start("sending state", lambda: _beside(dist.isend(tensor, dst=to), tensor), on=tensor).wait()

    def receive_(self, tensor: torch.Tensor, *, source: int) -> None:
        self._start("receiving state", lambda: _beside(dist.irecv(tensor, src=source), tensor), on=tensor).wait()

    def cut(self) -> None:
        self._links.cut()

    def leave(self) -> None:
        if self.broken:
            self._links.cut()
        self._let_go()
        destroy(excepthook=self._excepthook)

    def _let_go(self) -> None:
        """Drop what is under way: it holds the group's sockets and threads, and who began it may keep it for long."""
        dropped = [(work.drop(), work.watched) for work in self._under_way]
        works = [work for work, watched in dropped if watched]
        self._under_way = set()
        if not all(work.is_completed() for work in works):
            self._links.cut()
            if left := unfinished(works):
                keep(left, group=distributed_c10d._get_default_group())

    def _copy_from_0(self, tensor: torch.Tensor, *, doing: str) -> None:
        self._start(doing, lambda: dist.broadcast(tensor, src=0, async_op=True), on=tensor).wait()

    def _start(self, doing: str, begin: Callable[[], Any], *, on: torch.Tensor) -> Pending:
        with self._losing(doing):
            work = _Work(begin(), doing=doing, group=self, watched=on.device.type == "cpu")
        self._under_way.add(work)
        return work

    def _over(self) -> bool:
        # One link to each of the others, and one to the store.
        return self.broken or self._links.ended(count=self.size)

    @contextlib.contextmanager
    def _losing(self, doing: str) -> Iterator[None]:
        """Whoever loses a peer cuts itself off at once, since the others may be waiting for it."""
        try:
            with peer_errors(doing, broken=lambda: self.broken), self._activity.during(Doing.WAITING):
                yield
        except PeerLost:
            self.cut()
            raise


class _Work:
    """`Pending` of torch.distributed. `watched`: it is gloo's."""

    def __init__(self, work: Any, *, doing: str, group: TorchGroup, watched: bool) -> None:
        self._work, self._doing, self._group, self.watched = work, doing, group, watched

    def wait(self) -> None:
        if self._work is None:
            raise PeerLost(f"{self._doing} was given up: the group that it was begun in is over")
        with self._group._losing(self._doing):
            if not self.watched:
                self._work.wait()
            elif not finished(self._work, over=self._group._over):
                raise PeerLost(f"a peer went away while {self._doing}, half of which was done: it never ends by itself")
        self._group._under_way.discard(self)

    def drop(self) -> Any:
        """Let go of what torch has for it, which is returned."""
        work, self._work = self._work, None
        return work


def _beside(work: Any, tensor: torch.Tensor) -> Any:
    return Beside(work) if tensor.device.type == "cpu" else work


def _to_bytes(value: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _from_bytes(data: torch.Tensor) -> Any:
    return json.loads(data.numpy().tobytes())
