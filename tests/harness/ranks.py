"""Ranks of one world as threads, for code that only gathers and broadcasts small values."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from elastic.distributed.group import Done
from elastic.errors import PeerLost

_LIMIT_S = 30.0


class _Board:
    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.slots: list[Any] = [None] * size
        self.turn = threading.Lock()
        self.mail: dict[tuple[int, int], queue.Queue[torch.Tensor]] = {
            (source, to): queue.Queue() for source in range(size) for to in range(size)
        }

    @contextlib.contextmanager
    def let_others(self) -> Iterator[None]:
        """Give the turn away while waiting."""
        self.turn.release()
        try:
            yield
        finally:
            self.turn.acquire()


class ThreadGroup:
    """The Group of one thread. Values cross as JSON, as they would between processes."""

    broken = False

    def __init__(self, rank: int, board: _Board) -> None:
        self.rank = rank
        self.size = len(board.slots)
        self._board = board

    def gather(self, value: Any) -> list[Any] | None:
        everyone = self._exchange(value)
        return everyone if self.rank == 0 else None

    def broadcast(self, value: Any) -> Any:
        return self._exchange(value)[0]

    def sum_(self, tensor: Any) -> None:
        try:
            self._board.slots[self.rank] = tensor.clone()
            self._board.barrier.wait(_LIMIT_S)
            total = sum(self._board.slots[1:], start=self._board.slots[0])
            self._board.barrier.wait(_LIMIT_S)
        except threading.BrokenBarrierError as error:
            raise PeerLost("a rank of the test is gone") from error
        tensor.copy_(total)

    def _exchange(self, value: Any) -> list[Any]:
        try:
            self._board.slots[self.rank] = json.dumps(value)
            self._board.barrier.wait(_LIMIT_S)
            everyone = [json.loads(each) for each in self._board.slots]
            self._board.barrier.wait(_LIMIT_S)
        except threading.BrokenBarrierError as error:
            raise PeerLost("a rank of the test is gone") from error
        return everyone


class TensorGroup(ThreadGroup):
    """Sums and copies tensors too. Ranks take turns, since they share one generator: one computes, others wait."""

    def __init__(self, rank: int, board: _Board) -> None:
        super().__init__(rank, board)
        self.sums = 0

    def sum_(self, tensor: torch.Tensor) -> None:
        self.sums += 1
        everyone = self._share(tensor.clone())
        tensor.copy_(torch.stack(everyone).sum(dim=0))

    def start_sum(self, tensor: torch.Tensor) -> Done:
        self.sum_(tensor)
        return Done()

    def start_exchange(self, received, sent, *, takes, gives) -> Done:
        everyone = self._share(list(sent.clone().split(list(gives))))
        received.copy_(torch.cat([pieces[self.rank] for pieces in everyone]))
        assert [len(pieces[self.rank]) for pieces in everyone] == list(takes)
        return Done()

    def start_collect(self, whole: torch.Tensor, piece: torch.Tensor) -> Done:
        whole.copy_(torch.cat(self._share(piece.clone())))
        return Done()

    def broadcast_(self, tensor: torch.Tensor) -> None:
        tensor.copy_(self._share(tensor.clone())[0])

    def send(self, tensor: torch.Tensor, *, to: int) -> None:
        self._board.mail[self.rank, to].put(tensor.clone())

    def receive_(self, tensor: torch.Tensor, *, source: int) -> None:
        with self._board.let_others():
            try:
                came = self._board.mail[source, self.rank].get(timeout=_LIMIT_S)
            except queue.Empty as error:
                raise PeerLost("a rank of the test is gone") from error
        tensor.copy_(came)

    def cut(self) -> None:
        """The others hear of it."""
        self.broken = True
        self._board.barrier.abort()

    def leave(self) -> None:
        """Nothing to give up."""

    def _share(self, value: Any) -> list[Any]:
        with self._board.let_others():
            try:
                self._board.slots[self.rank] = value
                self._board.barrier.wait(_LIMIT_S)
                everyone = list(self._board.slots)
                self._board.barrier.wait(_LIMIT_S)
            except threading.BrokenBarrierError as error:
                raise PeerLost("a rank of the test is gone") from error
        return everyone

    def _exchange(self, value: Any) -> list[Any]:
        with self._board.let_others():
            return super()._exchange(value)


def run_tensor_ranks(size: int, work: Callable[[TensorGroup], Any]) -> list[Any]:
    """The same as `run_ranks`, one rank computing at a time."""

    def taking_turns(group: ThreadGroup) -> Any:
        assert isinstance(group, TensorGroup)
        with group._board.turn:
            return work(group)

    return run_ranks(size, taking_turns, make=TensorGroup)


def run_ranks(size: int, work: Callable[[ThreadGroup], Any], *, make: type[ThreadGroup] = ThreadGroup) -> list[Any]:
    """Run `work` once for each rank; its results by rank. The first exception that is no PeerLost is raised."""
    board = _Board(size)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def one(rank: int) -> None:
        try:
            results[rank] = work(make(rank, board))
        except BaseException as error:  # noqa: BLE001 - because it is raised again in the test's own thread
            errors.append(error)
            board.barrier.abort()

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_LIMIT_S)
    if errors:
        raise next((error for error in errors if not isinstance(error, PeerLost)), errors[0])
    return results
