"""Gathering: who of those that ask takes part in the next world, who is cut off from it, and who rests.

A new agent on a node whose agent was barred rests too, longer each time: else a supervisor that starts it again and
again would have it fail again and again. Where too few are there without it, it is let in.
Pure, like the machine that it is a part of.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from elastic.rendezvous import reach
from elastic.rendezvous.model import Cut, Member, Seat, World
from elastic.rendezvous.view import LeaderView, Roster

_FIRST_PAUSE_S = 30.0
_LONGEST_PAUSE_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Gathering:
    """`joiners` all reach each other, in seat order and then newcomers. `cut_off` ask too, but do not reach them all.

    `resting` were cut off or barred lately and are not tried before `rested_s` (the first of them).
    """

    joiners: tuple[Member, ...]
    cut_off: tuple[Member, ...] = ()
    resting: tuple[Member, ...] = ()
    rested_s: float | None = None


def gather(view: LeaderView, *, seats: Roster, now_s: float, without: str = "") -> Gathering:
    """Sort those that ask, all but the agent `without`."""
    back = [view.members[seat.agent] for seat in seats.back if seat.agent != without]
    awake, resting, rested_s = rested(view, members=seats.newcomers, now_s=now_s)
    if len(back) + len(awake) < view.limits.min_nodes:
        awake, resting, rested_s = rested(view, members=seats.newcomers, now_s=now_s, needed=True)
    asking = (*back, *awake)
    if not any(member.unreachable for member in asking):
        return Gathering(joiners=asking, resting=resting, rested_s=rested_s)
    generation = view.world.generation if view.world else 0
    survivors = _agents(seats.back)
    words = [m if m.agent not in survivors else _current(m, generation=generation) for m in asking]
    side = reach.largest_side(
        [member.agent for member in asking],
        cuts=reach.cuts_among(words),
        most=view.limits.max_nodes,
        survivors=survivors,
        leader=view.leader,
    )
    return Gathering(
        joiners=tuple(member for member in asking if member.agent in side),
        cut_off=tuple(member for member in asking if member.agent not in side),
        resting=resting,
        rested_s=rested_s,
    )


def rested(
    view: LeaderView, *, members: tuple[Member, ...], now_s: float, needed: bool = False
) -> tuple[tuple[Member, ...], tuple[Member, ...], float | None]:
    """Those that may be tried, those that still rest, and when the first of these may. `needed`: having been barred is
    no reason to rest."""
    until_s = {cut.agent: since_s + reach.pause_s(cut.tries) for cut, since_s in view.cut_s.items()}
    if not needed:
        for member in members:
            since_s = [at_s for entry, at_s in view.barred_s.items() if entry.node == member.node]
            if since_s:
                rests_s = max(since_s) + barred_pause_s(len(since_s))
                until_s[member.agent] = max(rests_s, until_s.get(member.agent, rests_s))
    resting = tuple(member for member in members if until_s.get(member.agent, now_s) > now_s)
    awake = tuple(member for member in members if until_s.get(member.agent, now_s) <= now_s)
    return awake, resting, min((until_s[member.agent] for member in resting), default=None)


def barred_pause_s(times: int) -> float:
    """How long a new agent rests on a node whose agents were barred so often."""
    return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(times - 1, 10))


def welcome(view: LeaderView, *, world: World, seats: Roster) -> tuple[Member, ...]:
    """Newcomers that a world at work would be opened for: all but those that say that they do not reach its seats."""
    seated = {seat.agent for seat in world.seats}
    return tuple(member for member in seats.newcomers if not seated & set(member.unreachable))


def complaints(view: LeaderView, *, world: World, seats: Roster) -> list[tuple[Seat, tuple[str, ...]]]:
    """Seats whose world does not advance, each with the nodes of its world that it cannot reach."""
    out = _agents((*seats.done, *seats.left))
    others = {seat.agent: seat.node for seat in world.seats if seat.agent not in out}
    found = []
    for seat in (*seats.active, *seats.back, *seats.leaving):
        named = _current(view.members[seat.agent], generation=world.generation).unreachable
        if nodes := tuple(others[agent] for agent in named if agent in others and agent != seat.agent):
            found.append((seat, nodes))
    return found


def cuts_after(old: World | None, *, view: LeaderView, gathering: Gathering, seated: set[str]) -> tuple[Cut, ...]:
    """What the next world says of cut agents: one more try for those that were tried, the same for those that wait.

    Who has a seat again is on trial for one generation: only if that ends otherwise the count begins anew.
    """
    if old is None:
        old_cuts, tried = {}, set[str]()
    else:
        old_cuts, tried = {cut.agent: cut for cut in old.cut}, {seat.agent for seat in old.seats}
    cuts = {}
    for member in gathering.cut_off:
        known = old_cuts.get(member.agent)
        if known is None or member.agent in tried:
            known = Cut(agent=member.agent, node=member.node, tries=1 + (known.tries if known else 0))
        cuts[member.agent] = known
    for agent, cut in old_cuts.items():
        on_trial = agent in seated and agent not in tried
        waiting = agent not in seated and agent not in cuts
        if agent in view.members and (on_trial or waiting):
            cuts[agent] = cut
    return tuple(cuts.values())


def _current(member: Member, *, generation: int) -> Member:
    """A seat's word about an earlier generation is over with it."""
    if not member.unreachable or member.unreachable_in == generation:
        return member
    return dataclasses.replace(member, unreachable=())


def _agents(seats: tuple[Seat, ...]) -> frozenset[str]:
    return frozenset(seat.agent for seat in seats)
