"""Swapping: every rank gives each other rank bytes of its own, all at the same time. All ranks call it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from elastic.checkpoint.arrivals import PEER, Arrivals, nowhere
from elastic.checkpoint.seams import Group

Bytes = bytes | memoryview


def swap(
    messages: Sequence[Iterable[Bytes]], *, group: Group, arrivals: Arrivals | None = None
) -> list[memoryview]:  # fmt: skip
    """What every rank, in their order, has for this one. `messages`: for each rank the pieces of what it gets.

    `arrivals`: where what comes is a state.

    Raises:
        PeerLost: from the group.
    """
    pieces = [list(each) for each in messages]
    gives = [sum(map(len, each)) for each in pieces]
    if group.size == 1:
        return [memoryview(b"".join(pieces[0]))]
    sizes = torch.empty(group.size, dtype=torch.int64)
    one_each = [1] * group.size
    group.start_exchange(sizes, torch.tensor(gives, dtype=torch.int64), takes=one_each, gives=one_each).wait()
    takes = [int(each) for each in sizes]
    sent = torch.empty(sum(gives), dtype=torch.uint8)
    at = 0
    for piece in (each for message in pieces for each in message):
        if len(piece):
            sent[at : at + len(piece)] = _tensor(piece)
            at += len(piece)
    received = torch.empty(sum(takes), dtype=torch.uint8)
    others = [rank for rank, size_bytes in enumerate(takes) if size_bytes and rank != group.rank]
    count = arrivals.begin(PEER, givers=others) if arrivals is not None else nowhere
    group.start_exchange(received, sent, takes=takes, gives=gives).wait()
    count(sum(takes[rank] for rank in others))
    return [memoryview(each.numpy()) for each in torch.split(received, takes)]  # type: ignore[arg-type]


def _tensor(piece: Bytes) -> torch.Tensor:
    writable = bytearray(piece) if memoryview(piece).readonly else piece
    return torch.frombuffer(writable, dtype=torch.uint8)
