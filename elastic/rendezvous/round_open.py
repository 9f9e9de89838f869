"""Round: while no generation is agreed, whom to wait for, and the world that comes of it.

Pure, like the machine that it is a part of.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from elastic.errors import Lack
from elastic.events import Cause, Outcome
from elastic.rendezvous import alike, awaited, budget, launched, seating, versions
from elastic.rendezvous.awaited import Hope
from elastic.rendezvous.budget import Judgement, Reported
from elastic.rendezvous.gathering import Gathering, cuts_after, gather
from elastic.rendezvous.model import LeftOut, Member, Phase, ProbeResult, Seat, World, natural_key
from elastic.rendezvous.verdict import Close, Evict, Form, Probe, Verdict, Wait
from elastic.rendezvous.view import LeaderView, Roster, coming
from elastic.rendezvous.wording import listed

_MOST_BARRED = 16


def decide(view: LeaderView, *, world: World, seats: Roster, now_s: float) -> Verdict:
    """OPEN: form as soon as nobody is awaited and there are enough; members that are gone are not awaited."""
    waiting = _await(view, world=world, seats=seats, now_s=now_s)
    if waiting is not None:
        return waiting
    if view.paused and world.cause is Cause.PAUSED:
        return Wait(reason=f"paused ({view.asked})")
    gathering = gather(view, seats=seats, now_s=now_s)
    judged = judgement(view, world=world, seats=seats, whole=_whole(seats) and not gathering.cut_off)
    lacks = judged.lacks
    hope = awaited.hope(view, world=world, seats=seats, judgement=judged, now_s=now_s)
    if hope is Hope.TO_COME:
        return awaited.for_holders(view)
    if hope is Hope.HERE or lacks is Lack.NEWEST:
        judged = judged.despite()
    if judged.exit_code is not None and judged.alone is None:
        return close(world, judgement=judged)
    if judged.alone is not None and judged.exit_code is not None:
        gathering = gather(view, seats=seats, now_s=now_s, without=judged.alone.agent)
        if len(gathering.joiners) < view.limits.min_nodes:
            gathering = gather(view, seats=seats, now_s=now_s)
            judged = judgement(view, world=world, seats=seats, whole=_whole(seats), needed=True)
            if judged.exit_code is not None:
                return close(world, judgement=judged)
    if not _agents(gathering.joiners) & {seat.agent for seat in seats.back}:
        # Nobody who knows the last generation is here: as at a first start, others may be about to come.
        late = coming(view, world=world)
        return start(view, gathering=gathering, coming=late, cause=world.cause, now_s=now_s, judgement=judged)
    if len(gathering.joiners) < view.limits.min_nodes:
        return _too_few(view, gathering)
    reason = _reason(world, seats=seats, gathering=gathering, most=view.limits.max_nodes)
    if world.cause is Cause.PAUSED:
        reason = f"resumed ({view.asked}): {reason}"
    cause = _cause(view, world=world, seats=seats)
    if goes_back := lacks is Lack.NEWEST and hope is Hope.NONE:
        reason += "; what was committed last is on none of them: they go back"
    return form(view, gathering=gathering, cause=cause, reason=reason, judgement=judged, goes_back=goes_back)


def start(
    view: LeaderView,
    *,
    gathering: Gathering,
    coming: tuple[Member, ...],
    cause: Cause,
    now_s: float,
    judgement: Judgement | None = None,
) -> Verdict:
    """Without survivors: form when all places are taken, or a while after the last arrival and once those that are
    `coming` have asked."""
    limits, joiners = view.limits, gathering.joiners
    if len(joiners) < limits.min_nodes:
        return dataclasses.replace(_too_few(view, gathering), awaited=limits.min_nodes - len(joiners))
    reason = f"nodes here: all {limits.max_nodes}"
    if len(joiners) < limits.max_nodes:
        until_s = max(view.arrived_s[member.agent] for member in joiners) + limits.first_wait_s
        if now_s < until_s:
            return Wait(until_s=until_s, reason=f"nodes here: {len(joiners)} of at most {limits.max_nodes}")
        if (late := awaited.for_those_coming(view, joiners=joiners, coming=coming, now_s=now_s)) is not None:
            return late
        reason = f"nodes here: {len(joiners)}, no other came for {limits.first_wait_s:g} s"
    if gathering.cut_off:
        reason += f"; {_cut_words(gathering)}"
    return form(view, gathering=gathering, cause=cause, reason=reason, judgement=judgement)


def reports(view: LeaderView, *, seats: Roster) -> list[Reported]:
    """What the members that are back say, a worker's own failure before what it did to its peers."""
    found = [
        Reported(agent=seat.agent, node=seat.node, report=report)
        for seat in seats.back
        if (report := view.members[seat.agent].report) is not None
    ]
    return sorted(found, key=lambda one: one.report.cause is Cause.PEER_LOST)


def judgement(view: LeaderView, *, world: World, seats: Roster, whole: bool = False, needed: bool = False) -> Judgement:
    """What the failures up to now amount to."""
    return budget.judge(
        world.failures,
        generation=world.generation,
        reports=reports(view, seats=seats),
        no_progress_limit=view.limits.no_progress_limit,
        bucket_limit=view.limits.bucket_limit,
        whole=whole,
        barred=world.barred,
        needed=needed,
    )


def close(world: World, *, judgement: Judgement) -> Close:
    """The job has failed for good."""
    closed = dataclasses.replace(
        world,
        phase=Phase.CLOSED,
        outcome=Outcome.FAILED,
        exit_code=judgement.exit_code or 0,
        reason=judgement.reason,
        text=judgement.text,
        planned=False,
        failures=judgement.history,
    )
    return Close(world=closed, reason=judgement.reason)


def _whole(seats: Roster) -> bool:
    """Nobody's absence explains why the generation ended."""
    return not (seats.gone or seats.left or seats.leaving or seats.active)


def _await(view: LeaderView, *, world: World, seats: Roster, now_s: float) -> Verdict | None:
    """Members that have not come back: ask them, evict the silent, wait for the others up to a limit."""
    if not seats.active:
        return None
    wait_s = view.limits.planned_wait_s if world.planned else view.limits.late_wait_s
    until_s = view.world_since_s + wait_s
    nodes = _nodes(seats.active)
    if world.planned:
        if now_s < until_s:
            return Wait(until_s=until_s, reason=f"waiting for {nodes} to finish the step")
        return None
    unasked: list[Seat] = []
    dead: list[tuple[Seat, ProbeResult]] = []
    next_s = until_s
    for seat in seats.active:
        answer = view.answer(seat.agent, since_s=view.world_since_s)
        if answer is None or now_s >= answer.at_s + view.limits.reprobe_s:
            unasked.append(seat)
        elif answer.result is not ProbeResult.ALIVE:
            dead.append((seat, answer.result))
        else:
            next_s = min(next_s, answer.at_s + view.limits.reprobe_s)
    if dead:
        why = listed((f"{seat.node} is not back and its agent is {result}" for seat, result in dead), by="; ")
        return Evict(agents=tuple(seat.agent for seat, _ in dead), reason=why)
    if now_s >= until_s:
        return None
    if unasked:
        names = _nodes(unasked)
        return Probe(agents=tuple(seat.agent for seat in unasked), reason=f"not back yet: {names}. Alive?")
    return Wait(until_s=next_s, reason=f"waiting for {nodes}: alive, not back yet")


def form(
    view: LeaderView,
    *,
    gathering: Gathering,
    cause: Cause,
    reason: str,
    judgement: Judgement | None,
    direct: bool = False,
    goes_back: bool = False,
) -> Form:
    """The next world. `direct`: those at work go on in it without having been heard. `goes_back`: see World."""
    old = view.world if view.world and view.world.phase is not Phase.CLOSED else None
    barred = old.barred if old else ()
    if judgement is not None and judgement.exit_code is not None and judgement.alone is not None:
        barred = (*barred, judgement.alone)
        judgement = judgement.without()
        reason += f"; {judgement.reason}"
    seats = seating.arrange(old, joiners=gathering.joiners, max_nodes=view.limits.max_nodes)
    first = view.members[seats[0].agent]
    world = World(
        generation=seating.next_generation(view.world, members=view.members.values()),
        phase=Phase.FORMED,
        seats=seats,
        store_address=first.address,
        store_port=first.store_port,
        cause=cause,
        reason=reason,
        direct=direct,
        most_nodes=view.limits.max_nodes,
        left_out=_left_out(view, old=old, seats=seats),
        cut=cuts_after(old, view=view, gathering=gathering, seated={seat.agent for seat in seats}),
        barred=barred[-_MOST_BARRED:],
        failures=judgement.history if judgement else (),
        numerics=alike.common(view.members[seat.agent] for seat in seats),
        speaks=versions.common(view.members[seat.agent] for seat in seats),
        launch=launched.common(view.members[seat.agent] for seat in seats),
        goes_back=goes_back,
    )
    return Form(world=world, reason=reason)


def _left_out(view: LeaderView, *, old: World | None, seats: tuple[Seat, ...]) -> tuple[LeftOut, ...]:
    """Live members of ended generations that have not asked again, so that they are not taken for newcomers."""
    if old is None:
        return ()
    seated = {seat.agent for seat in seats}
    owed = {entry.agent: entry.generation for entry in old.left_out} | {
        seat.agent: old.generation for seat in old.seats
    }
    return tuple(
        LeftOut(agent=agent, generation=generation)
        for agent, generation in owed.items()
        if agent not in seated and agent in view.members and view.members[agent].ended_generation < generation
    )


def _cause(view: LeaderView, *, world: World, seats: Roster) -> Cause:
    """The deepest cause known by now: peers often report first that a peer was lost."""
    told = [one.report.cause for one in reports(view, seats=seats) if one.report.cause is not Cause.PEER_LOST]
    if world.cause is Cause.NODE_LOST or (seats.gone and not told):
        return Cause.NODE_LOST
    return told[0] if told and not world.planned else world.cause


def _reason(world: World, *, seats: Roster, gathering: Gathering, most: int) -> str:
    count = len(seats.back)
    parts = [f"{count} member{'s' if count != 1 else ''} of generation {world.generation} back"]
    for what, who in (("gone", (*seats.gone,)), ("left", (*seats.left, *seats.leaving)), ("late", seats.active)):
        if who:
            parts.append(f"{_nodes(who)} {what}")
    taken = seating.arrange(world, joiners=gathering.joiners, max_nodes=most)
    before = {seat.agent for seat in world.seats}
    new = sorted((seat.node for seat in taken if seat.agent not in before), key=natural_key)
    if new:
        parts.append(f"{listed(new)} new")
    if gathering.cut_off:
        parts.append(_cut_words(gathering))
    here = _agents(gathering.joiners) - {seat.agent for seat in taken}
    if over := [seat for seat in seats.back if seat.agent in here]:
        parts.append(f"{_nodes(over)} without a place")
    return "; ".join(parts)


def _cut_words(gathering: Gathering) -> str:
    nodes = sorted((member.node for member in gathering.cut_off), key=natural_key)
    them = "it waits" if len(nodes) == 1 else "they wait"
    return f"{listed(nodes)} and the others do not all reach each other: {them} as spare"


def _too_few(view: LeaderView, gathering: Gathering) -> Wait:
    reason = f"nodes here: {len(gathering.joiners)} of at least {view.limits.min_nodes}"
    if gathering.cut_off:
        reason += f" that reach each other; {_cut_words(gathering)}"
    if gathering.resting:
        reason += f"; {listed(member.node for member in gathering.resting)} rests after a cut"
    short = view.limits.min_nodes - len(gathering.joiners)
    return Wait(until_s=gathering.rested_s, reason=reason, short=short)


def _agents(members: Iterable[Member]) -> set[str]:
    return {member.agent for member in members}


def _nodes(seats: Iterable[Seat]) -> str:
    return listed(seat.node for seat in seats)
