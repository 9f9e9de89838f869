"""Passing on: a rank's part of the state is copied into another node's memory, so that losing a node loses no part.

What travels is an arena as it lies there, and it lies at its peer in the arena of the same number: so a peer has the
very steps that its owner has. All ranks pass theirs on at once, before the next step: its sum tells everybody that all
have, and only then is an older copy written over.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from elastic.checkpoint.arena import HEAD_BYTES, Arena
from elastic.checkpoint.memory import MemoryTier, NoRoom
from elastic.checkpoint.seams import Group
from elastic.failpoint import failpoint

_HELLO = struct.Struct(f"<{HEAD_BYTES}sqqq?")


@dataclass(frozen=True, kw_only=True)
class Passed:
    """What came of it on this rank. `fault`: why what came was not kept, or nothing was sent; else empty."""

    sent_bytes: int = 0
    fault: str = ""


@dataclass(frozen=True, kw_only=True)
class _Hello:
    """What a rank says before: what it would send, and whether it has room for what it gets."""

    head: bytes = bytes(HEAD_BYTES)
    size_bytes: int = 0
    words: int = 0
    """The sum of the 64-bit words that follow."""
    arena: int = 0
    accepts: bool = False

    def to_tensor(self) -> Tensor:
        data = _HELLO.pack(self.head, self.size_bytes, self.words, self.arena, self.accepts)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)

    @classmethod
    def from_tensor(cls, tensor: Tensor) -> _Hello:
        head, size_bytes, words, arena, accepts = _HELLO.unpack(tensor.numpy().tobytes())
        return cls(head=head, size_bytes=size_bytes, words=words, arena=arena, accepts=accepts)


def distance(nodes: Sequence[str]) -> int:
    """How many ranks further each rank's copy goes, so that it comes to another node; 0 where there is none.

    `nodes`: that of each rank. Where nodes have unequally many ranks a few copies may stay on their node.
    """
    best, most = 0, 0
    for far in range(1, len(nodes)):
        crossing = sum(node != nodes[(rank + far) % len(nodes)] for rank, node in enumerate(nodes))
        if crossing > most:
            best, most = far, crossing
        if most == len(nodes):
            break
    return best


def pass_on(tier: MemoryTier | None, at: int | None, *, group: Group, far: int) -> Passed:
    """Send what lies in the arena `at` to the rank that is `far` further, and keep what comes. All ranks call it.

    `tier`, `at`: None on a rank that has nothing to send.

    Raises:
        PeerLost: from the group.
    """
    to, source = (group.rank + far) % group.size, (group.rank - far) % group.size
    guests = tier.guests if tier is not None else ()
    copy = tier.arenas[at].copy_out() if tier is not None and at is not None else None
    hello = _Hello(accepts=bool(guests))
    if copy is not None and at is not None:
        head, data = copy
        hello = _Hello(head=head, size_bytes=len(data), words=_words(data), arena=at, accepts=bool(guests))
    said = _greet(hello, {to, source}, group=group)
    sends = hello.size_bytes if said[to].accepts else 0
    coming, fault = said[source], "" if said[to].accepts else f"rank {to} has no memory for a copy"
    takes = coming.size_bytes if hello.accepts else 0
    home: Arena | None = None
    received = torch.empty(0, dtype=torch.uint8)
    if takes and tier is not None:
        home, received = guests[coming.arena], received
        try:
            received = _tensor(home.copy_in(takes, grow=tier.grow))
        except NoRoom as error:
            home, fault, received = None, str(error), torch.empty(takes, dtype=torch.uint8)
    sent = _tensor(copy[1]) if copy is not None and sends else torch.empty(0, dtype=torch.uint8)
    failpoint("memory.pass")
    _exchange(received, sent, takes={source: takes}, gives={to: sends}, group=group)
    if home is not None:
        if _words(memoryview(received.numpy())) == coming.words:  # type: ignore[arg-type]
            home.seal(coming.head)
        else:
            fault = f"what came from rank {source} is not what it sent"
    return Passed(sent_bytes=sends, fault=fault)


def _greet(hello: _Hello, others: set[int], *, group: Group) -> dict[int, _Hello]:
    """What the others say; they greet this rank, too."""
    sizes = dict.fromkeys(sorted(others), _HELLO.size)
    received = torch.empty(sum(sizes.values()), dtype=torch.uint8)
    _exchange(received, hello.to_tensor().repeat(len(sizes)), takes=sizes, gives=sizes, group=group)
    came = torch.split(received, _HELLO.size)
    return {rank: _Hello.from_tensor(each) for rank, each in zip(sizes, came, strict=True)}


def _exchange(received: Tensor, sent: Tensor, *, takes: dict[int, int], gives: dict[int, int], group: Group) -> None:
    ranks = range(group.size)
    taken, given = ([each.get(rank, 0) for rank in ranks] for each in (takes, gives))
    group.start_exchange(received, sent, takes=taken, gives=given).wait()


def _tensor(data: memoryview) -> Tensor:
    return torch.frombuffer(data, dtype=torch.uint8)


def _words(data: memoryview) -> int:
    return int(torch.frombuffer(data, dtype=torch.int64).sum())
