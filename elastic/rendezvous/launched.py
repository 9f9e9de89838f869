"""Launched: agents of two launches of one run are never in one world, though they meet under the run's keys.

Pure but for `check`. Who comes to the save path has waited for its turn there already; this is for those who came at
the same moment, and for who was asleep while another launch took over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable

from elastic.errors import RunMismatch, StoreError
from elastic.rendezvous.model import Member, Phase, World


def common(members: Iterable[Member]) -> str:
    """The launch of all of them; "" where they do not say."""
    told = {member.launch for member in members}
    return told.pop() if len(told) == 1 else ""


def same(one: str, other: str) -> bool:
    """Whether these are one launch. "": an agent that does not say."""
    return not one or not other or one == other


def fitting(
    newcomers: Iterable[Member], *, world: World | None, here: Collection[str], leader: Member | None
) -> tuple[Member, ...]:
    """Those that a world may take in. `here`: the agents that have a key."""
    kept = tuple(newcomers)
    if world is not None and any(seat.agent in here for seat in world.seats):
        return tuple(member for member in kept if same(member.launch, world.launch))
    return kept if leader is None else tuple(member for member in kept if same(member.launch, leader.launch))


def check(own: Member, *, world: World, members: Callable[[], Iterable[Member]]) -> None:
    """See whether an agent without a seat may wait for one. `members`: asked from the store, only where it differs.

    Raises:
        RunMismatch: it may not.
    """
    if same(own.launch, world.launch) or world.phase is Phase.CLOSED or world.seat_of(own.agent) is not None:
        return
    with contextlib.suppress(StoreError):
        if any(member.launch == world.launch for member in members() if member.agent != own.agent):
            raise RunMismatch(
                f"this node is of launch {own.launch!r}, and {world.launch!r} is at work in this run: end that one "
                "first, or choose another checkpoint.save_path"
            )
