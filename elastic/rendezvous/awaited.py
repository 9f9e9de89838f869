"""Awaited: nodes that are not in a round yet, and what is worth waiting for them. Pure, like the machine.

A node that comes to a world at work gets ready before it asks (launch/ahead.py), and is `coming` until then. Where
that world is lost meanwhile, one that asks at once must not begin alone what the others know more of. And a world whose
nodes lack what was committed is not at its end while nodes may come that hold it: after a power failure they come one
by one.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from elastic.rendezvous.budget import Judgement
from elastic.rendezvous.gathering import gather
from elastic.rendezvous.model import Member, Phase, World, natural_key
from elastic.rendezvous.verdict import Wait
from elastic.rendezvous.view import LeaderView, Roster
from elastic.rendezvous.wording import listed


class Hope(enum.Enum):
    """For nodes that hold what those of a world lack."""

    NONE = "none"
    """Nobody can come, or nobody has come in time."""
    TO_COME = "to come"
    HERE = "here"
    """Somebody takes part in the next world who was not in this one."""


def for_those_coming(
    view: LeaderView, *, joiners: tuple[Member, ...], coming: tuple[Member, ...], now_s: float
) -> Wait | None:
    """Where nobody knows the last generation: wait for members that are here and have not asked yet, up to
    `late_wait_s` after somebody could have begun."""
    until_s = _since_s(view, joiners) + view.limits.late_wait_s
    if not coming or now_s >= until_s:
        return None
    return Wait(until_s=until_s, awaited=len(coming), reason=f"waiting for {_nodes(coming)}: here, not ready yet")


def hope(view: LeaderView, *, world: World, seats: Roster, judgement: Judgement, now_s: float) -> Hope:
    """Who may hold what the members of this world lack, if they lack something."""
    if not judgement.lacks or judgement.spent or len(seats.active) + len(seats.back) >= view.limits.max_nodes:
        return Hope.NONE
    seated = {seat.agent for seat in world.seats}
    if any(member.agent not in seated for member in gather(view, seats=seats, now_s=now_s).joiners):
        return Hope.HERE
    return Hope.TO_COME if world.phase is Phase.FORMED or now_s < _holders_until_s(view) else Hope.NONE


def for_holders(view: LeaderView) -> Wait:
    """The wait itself; a world at work is opened for it first."""
    return Wait(until_s=_holders_until_s(view), reason="no node that is here holds what was committed: others may")


def _holders_until_s(view: LeaderView) -> float:
    return view.world_since_s + view.limits.holders_wait_s


def _since_s(view: LeaderView, joiners: Iterable[Member]) -> float:
    """Since when somebody could have begun. Arrivals after that do not move it."""
    return max(view.world_since_s, min(view.arrived_s[member.agent] for member in joiners))


def _nodes(members: tuple[Member, ...]) -> str:
    return listed(sorted((member.node for member in members), key=natural_key))
