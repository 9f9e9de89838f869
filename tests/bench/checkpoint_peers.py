"""What others need for the same state, and what the machine could do at best, measured in the same process."""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from tests.bench.checkpoint_state import Cost, measured

PAGE_BYTES = 4096
CHUNK_BYTES = 32 << 20

State = dict[str, torch.Tensor]


def sync_file(path: Path) -> None:
    """Force a file to disk."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def torch_save(state: State, place: Path) -> Cost:
    """torch.save and fsync."""

    def work() -> None:
        torch.save(state, place / "state.pt")
        sync_file(place / "state.pt")

    return measured(work)


def safetensors_save(state: State, place: Path) -> Cost:
    """safetensors.save_file and fsync."""

    def work() -> None:
        save_file({name: each.contiguous() for name, each in state.items()}, place / "state.safetensors")
        sync_file(place / "state.safetensors")

    return measured(work)


def dcp_save(state: State, place: Path) -> Cost:
    """torch.distributed.checkpoint.save, which syncs its files by default."""
    return measured(lambda: dcp.save(state, checkpoint_id=str(place / "dcp"), no_dist=True))


def dcp_async(state: State, place: Path) -> tuple[Cost, Cost]:
    """The asynchronous one, in a thread: until it returns, and until it is done."""
    pending: list[object] = []

    def begin() -> None:
        pending.append(
            dcp.async_save(
                state,
                checkpoint_id=str(place / "dcp_async"),
                async_checkpointer_type=AsyncCheckpointerType.THREAD,
                no_dist=True,
            )
        )

    stall = measured(begin)
    rest = measured(lambda: pending[0].result())
    return stall, Cost(wall_s=stall.wall_s + rest.wall_s, cpu_s=stall.cpu_s + rest.cpu_s)


def dcp_load(state: State, place: Path) -> Cost:
    """Into the tensors that are there."""
    return measured(lambda: dcp.load(state, checkpoint_id=str(place / "dcp"), no_dist=True))


class Limits:
    """A warm buffer that begins at a page, and a file that is written again and again."""

    def __init__(self, state: State, place: Path) -> None:
        self._state = state
        self.size_bytes = sum(each.numel() * each.element_size() for each in state.values())
        self._buffer = mmap.mmap(-1, self.size_bytes + PAGE_BYTES, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._targets = self._views()
        self._path = place / "recycled"
        self._path.write_bytes(bytes(PAGE_BYTES))
        self.copy()
        self.write()

    def _views(self) -> dict[str, torch.Tensor]:
        views, at = {}, 0
        for name, each in sorted(self._state.items(), key=lambda item: -item[1].numel()):
            view = torch.frombuffer(self._buffer, dtype=each.dtype, count=each.numel(), offset=at)
            views[name] = view.view(each.shape)
            at += each.numel() * each.element_size()
        return views

    def copy(self) -> Cost:
        """Every tensor into the buffer: the least that a save can make training wait."""

        def work() -> None:
            for name, target in self._targets.items():
                target.copy_(self._state[name])

        return measured(work)

    def copy_back(self) -> Cost:
        """And out of it again."""

        def work() -> None:
            for name, target in self._targets.items():
                self._state[name].copy_(target)

        return measured(work)

    def write(self) -> Cost:
        """The buffer over a file that has its blocks already, past the page cache, and fsync."""

        def work() -> None:
            fd = os.open(self._path, os.O_WRONLY | os.O_DIRECT)
            view = memoryview(self._buffer)[: self.size_bytes // PAGE_BYTES * PAGE_BYTES]
            while view:
                view = view[os.write(fd, view[:CHUNK_BYTES]) :]
            os.fsync(fd)
            os.close(fd)

        return measured(work)

    def read(self) -> Cost:
        """preadv from the page cache into the tensors that are there."""
        fd = os.open(self._path, os.O_RDONLY)
        places, at = [], 0
        for name in self._targets:
            data = memoryview(self._state[name].reshape(-1).view(torch.uint8).numpy())
            places.append((data, at))
            at += len(data)
        for start in range(0, at, CHUNK_BYTES):
            os.pread(fd, CHUNK_BYTES, start)  # so that it is in the page cache

        def work() -> None:
            for data, offset in places:
                done = 0
                while done < len(data) and (count := os.preadv(fd, [data[done:]], offset + done)):
                    done += count

        cost = measured(work)
        os.close(fd)
        return cost


def fresh(place: Path, work: Callable[[Path], object]) -> object:
    """Do it in an empty directory, which is gone afterwards."""
    place.mkdir(parents=True)
    try:
        return work(place)
    finally:
        shutil.rmtree(place)
