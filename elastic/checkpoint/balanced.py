"""Balanced reading: every byte of an iteration is read by one rank and sent to the others (load_balanced)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from elastic.checkpoint.arrivals import DISK, PEER, Arrivals
from elastic.checkpoint.layout import ShardKind, parse_shard_name
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.seams import Group
from elastic.checkpoint.storage import BulkFile, PosixStorage, Storage


class Gathered(PosixStorage):
    """A storage that has some files in memory already; what could not be read raises when it is asked for."""

    def __init__(self, behind: Storage) -> None:
        self._behind = behind
        self._files: dict[str, bytes] = {}
        self._faults: dict[str, str] = {}
        self.read_bytes = 0
        """Bytes that this rank itself read."""

    def keep(self, path: str, data: bytes, *, fault: str | None) -> None:
        """Answer for a file from now on, with its bytes or with what was wrong."""
        if fault is None:
            self._files[path] = data
        else:
            self._faults[path] = fault

    def read(self, path: str) -> bytes:
        if path in self._faults:
            raise OSError(self._faults[path])
        return self._files[path] if path in self._files else self._behind.read(path)

    def open_bulk(self, path: str) -> AbstractContextManager[BulkFile]:
        return nullcontext(BytesFile(memoryview(self.read(path))))

    def read_part(self, path: str, start: int, stop: int) -> bytes:
        return self.read(path)[start:stop]

    def size_bytes(self, path: str) -> int | None:
        return self._behind.size_bytes(path)

    def names(self, path: str) -> list[str]:
        return self._behind.names(path)


class BytesFile:
    """A `BulkFile` that is in memory."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def read_into(self, views: Sequence[memoryview], at: int) -> int:
        begin = at
        for view in views:
            there = self._data[at : at + len(view)]
            view[: len(there)] = there
            at += len(there)
        return at - begin


def read_together(
    directory: str, manifest: Manifest, *, storage: Storage, group: Group, weights_only: bool, arrivals: Arrivals
) -> Gathered:  # fmt: skip
    """Read the files of an iteration, each rank its part of every file, and send the parts to all.

    Every rank takes part to the end, whatever it could not read; nothing is verified here: whoever uses the bytes
    compares them with the manifest, on every rank.

    Raises:
        PeerLost: from the group.
    """
    gathered = Gathered(storage)
    others = [rank for rank in range(group.size) if rank != group.rank]
    for name, facts in manifest.files.items():
        shard = parse_shard_name(name)
        if weights_only and shard is not None and shard.kind is ShardKind.OPT:
            continue
        path = os.path.join(directory, name)
        start, stop = part(facts.size_bytes, rank=group.rank, world_size=group.size)
        # Bytes are added as integers, and all but one rank add 0: what arrives is what was read, bit for bit.
        whole = torch.zeros(facts.size_bytes + group.size, dtype=torch.uint8)
        count = arrivals.begin(DISK)
        fault = _read_into(whole, path, start, stop, storage)
        count(stop - start if fault is None else 0)
        whole[facts.size_bytes + group.rank] = fault is not None
        count = arrivals.begin(PEER, givers=others)
        group.sum_(whole)
        count(facts.size_bytes - (stop - start))
        gathered.read_bytes += stop - start
        failed = whole[facts.size_bytes :].nonzero().flatten().tolist()
        told = fault or (f"rank {failed[0]} could not read its part" if failed else None)
        gathered.keep(path, whole[: facts.size_bytes].numpy().tobytes(), fault=told)
    return gathered


def part(size_bytes: int, *, rank: int, world_size: int) -> tuple[int, int]:
    """The bytes (first, one past the last) of a file that one rank reads; they differ by at most one in number."""
    return size_bytes * rank // world_size, size_bytes * (rank + 1) // world_size


def _read_into(whole: torch.Tensor, path: str, start: int, stop: int, storage: Storage) -> str | None:
    try:
        data = storage.read_part(path, start, stop)
    except OSError as error:
        return str(error)
    if len(data) != stop - start:
        return f"it has fewer than {stop} bytes"
    if data:
        whole[start:stop] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return None
