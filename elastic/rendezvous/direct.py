"""Direct: the next world at once, where all that is wrong with one at work is that members of it are lost.

Whoever is left gets its seat in the next world without having said that it has ended the last one: one write instead
of one from each of thousands. It ends its workers before it takes the seat, and does not take it while it has
something to say that was not heard (see waiting.py). Pure, like the machine that it is a part of.
"""

from __future__ import annotations

import dataclasses

from elastic.events import Cause
from elastic.rendezvous import round_open
from elastic.rendezvous.budget import Judgement
from elastic.rendezvous.gathering import gather
from elastic.rendezvous.model import ProbeResult, Seat, World
from elastic.rendezvous.verdict import Form
from elastic.rendezvous.view import LeaderView, Roster


def unasked(view: LeaderView, *, seats: Roster) -> tuple[Seat, ...]:
    """Of few seats those at work that are asked together with the ones that are gone: more may be dead than is known.

    Of many, asking would take longer than the leases of the dead."""
    if not _untold(seats) or len(seats.active) > view.limits.ask_all_up_to:
        return ()
    since_s = _since_s(view, seats)
    return tuple(seat for seat in seats.active if view.answer(seat.agent, since_s=since_s) is None)


def form_directly(
    view: LeaderView, *, world: World, seats: Roster, reason: str, judgement: Judgement, now_s: float
) -> Form | None:
    """The world without those that are gone, all of them dead; None where members must be heard first.

    That is where somebody has ended the generation, is done or leaves; where one of few does not answer; where too few
    are left; and where the store for the workers of the next generation is not known."""
    if not _untold(seats):
        return None
    if len(seats.active) <= view.limits.ask_all_up_to and not _all_answer(view, seats):
        return None
    seats = dataclasses.replace(seats, active=(), back=seats.active)
    gathering = gather(view, seats=seats, now_s=now_s)
    if len(gathering.joiners) < view.limits.min_nodes or not seats.back:
        return None
    count = len(seats.back)
    who = "1 member goes" if count == 1 else f"{count} members go"
    reason += f"; {who} on from generation {world.generation}"
    formed = round_open.form(
        view, gathering=gathering, cause=Cause.NODE_LOST, reason=reason, judgement=judgement, direct=True
    )
    return formed if _has_store(view, old=world, new=formed.world) else None


def _untold(seats: Roster) -> bool:
    """Whether nobody has said anything."""
    return not (seats.back or seats.leaving or seats.left or seats.done)


def _since_s(view: LeaderView, seats: Roster) -> float:
    return max((view.absent_s[seat.agent] for seat in seats.gone), default=0.0)


def _all_answer(view: LeaderView, seats: Roster) -> bool:
    since_s = _since_s(view, seats)
    answers = [view.answer(seat.agent, since_s=since_s) for seat in seats.active]
    return all(answer is not None and answer.result is ProbeResult.ALIVE for answer in answers)


def _has_store(view: LeaderView, *, old: World, new: World) -> bool:
    """Whether the next store is one that was not in use: who hosted the last one has written where the next one is."""
    first = new.seats[0].agent
    return first != old.seats[0].agent or view.members[first].last_generation >= old.generation
