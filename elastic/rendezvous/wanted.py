"""Wanted: what a person's wish means for a world at work. Pure, like the machine that it is a part of."""

from __future__ import annotations

from dataclasses import dataclass

from elastic.events import Cause
from elastic.rendezvous.model import World
from elastic.rendezvous.view import LeaderView, Roster


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Why the generation is to end at a step boundary. `room`: see World; 0 where the job is going to wait."""

    cause: Cause
    reason: str
    room: int = 0


def wanted(view: LeaderView, *, world: World, seats: Roster) -> Wanted | None:
    """Whether this world is another one than is wished for; None: it is not, or the job is finishing anyway.

    Only a world at work is paused. One that is being formed goes on to its first step, at which all can save.
    """
    if seats.done:
        return None
    if view.paused:
        return Wanted(cause=Cause.PAUSED, reason=f"paused ({view.asked}): finish the step and save first")
    least, most, count = view.limits.min_nodes, view.limits.max_nodes, len(world.seats)
    if view.resized and count > most:
        reason = f"at most {_nodes(most)} wanted, not {count} ({view.asked}): finish the step and save first"
        return Wanted(cause=Cause.SCALED, reason=reason, room=most)
    if view.resized and count < least:
        reason = f"at least {_nodes(least)} wanted, not {count} ({view.asked}): finish the step and save first"
        return Wanted(cause=Cause.SCALED, reason=reason)
    return None


def is_at_rest(view: LeaderView, *, world: World, seats: Roster) -> bool:
    """Whether a paused job has come to rest: all have saved and ended. Who goes then is missed when it goes on."""
    told = any(view.members[seat.agent].report is not None for seat in seats.back)
    return view.paused and world.cause is Cause.PAUSED and not seats.active and not told


def _nodes(count: int) -> str:
    return "1 node is" if count == 1 else f"{count} nodes are"
