"""Versions: which agents may be in one world. Those of another protocol or torch are refused, old and new alike.

Pure but for `check`. While a member of the world is here, newcomers
that speak otherwise get no seat and end by themselves; where nobody is left, a run has moved as a whole, and goes on as
its leader speaks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable

from elastic.errors import StoreError, VersionsDiffer
from elastic.rendezvous.model import Member, Phase, World
from elastic.rendezvous.speech import REMEDY


def common(members: Iterable[Member]) -> str:
    """What all of them speak; "" where they do not say."""
    told = {member.speaks for member in members}
    return told.pop() if len(told) == 1 else ""


def fitting(
    newcomers: Iterable[Member], *, world: World | None, here: Collection[str], leader: Member | None
) -> tuple[Member, ...]:
    """Those that a world may take in. `here`: the agents that have a key."""
    kept = tuple(newcomers)
    if world is not None and any(seat.agent in here for seat in world.seats):
        return tuple(member for member in kept if member.speaks == world.speaks)
    return kept if leader is None else tuple(member for member in kept if member.speaks == leader.speaks)


def check(own: Member, *, world: World, members: Callable[[], Iterable[Member]]) -> None:
    """See whether an agent without a seat may wait for one. `members`: asked from the store, only where it differs.

    Raises:
        VersionsDiffer: it may not.
    """
    if world.speaks == own.speaks or world.phase is Phase.CLOSED or world.seat_of(own.agent) is not None:
        return
    with contextlib.suppress(StoreError):
        if not any(member.speaks == world.speaks for member in members() if member.agent != own.agent):
            return
    raise VersionsDiffer(f"this node speaks {own.speaks!r}, the run {world.speaks!r}: {REMEDY}")
