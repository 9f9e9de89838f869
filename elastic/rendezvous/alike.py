"""Alike: with `numerics: exact`, a node that would compute other bits is refused before it is admitted.

Pure but for `check`. A world remembers what its members had in common; while one of them is here, newcomers that
differ are no newcomers to the leader, and end by themselves with the reason. Where nobody of the world is left, a run
has moved as a whole, and goes on. What an agent cannot see of its workers, these compare when they meet.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Iterable

from elastic.errors import ElasticError, NumericsDiffer, StoreError
from elastic.plan.likeness import Likeness, difference
from elastic.rendezvous.model import Member, World


def common(members: Iterable[Member]) -> str:
    """What all of a world's members compute like; "" where they differ or do not say."""
    told = {member.numerics for member in members}
    return told.pop() if len(told) == 1 else ""


def fitting(newcomers: Iterable[Member], *, world: World, here: Collection[str]) -> tuple[Member, ...]:
    """Those that a world may take in. `here`: the agents that have a key."""
    kept = tuple(newcomers)
    if not world.numerics or not any(seat.agent in here for seat in world.seats):
        return kept
    return tuple(member for member in kept if member.numerics == world.numerics)


def check(own: Member, *, world: World, members: Callable[[], Iterable[Member]]) -> None:
    """See whether an agent without a seat may wait for one. `members`: asked from the store, only where it differs.

    Raises:
        NumericsDiffer: it may not.
    """
    if world.numerics in ("", own.numerics) or world.seat_of(own.agent) is not None:
        return
    with contextlib.suppress(StoreError):
        if any(member.numerics == world.numerics for member in members() if member.agent != own.agent):
            raise NumericsDiffer(
                "this node would not compute the same bits as the others (training.numerics is exact): "
                f"{_reason(own.numerics, world.numerics)}. Use the same software, processor and settings here, or give "
                "training.numerics: plain to all"
            )


def _reason(own: str, model: str) -> str:
    if not own:
        return "its own training.numerics is plain"
    try:
        return difference(_read(own), _read(model), whose="the run")
    except (ElasticError, ValueError) as error:
        return str(error)


def _read(text: str) -> Likeness:
    return Likeness.from_plain(json.loads(text))
