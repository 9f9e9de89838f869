"""Round: while no generation is agreed, whom to wait for, and the world that comes of it.

Pure, like the machine that it is a part of.
"""

from __future__ import annotations

from elastic.events import Cause
from elastic.rendezvous import budget, seating
from elastic.rendezvous.budget import Judgement
from elastic.rendezvous.model import FailureReport, LeftOut, Member, Phase, ProbeResult, Seat, World
from elastic.rendezvous.verdict import Evict, Form, Probe, Verdict, Wait
from elastic.rendezvous.view import LeaderView, Roster


def decide(view: LeaderView, *, world: World, seats: Roster, judgement: Judgement, now_s: float) -> Verdict:
    """OPEN: form as soon as nobody is awaited and there are enough; members that are gone are not awaited."""
    if seats.active:
        waiting = _await(view, world=world, seats=seats, now_s=now_s)
        if waiting is not None:
            return waiting
    joiners = (*(view.members[seat.agent] for seat in seats.back), *seats.newcomers)
    if not seats.back:
        # Nobody who knows the last generation is here: as at a first start, others may be about to come.
        return gather(view, joiners=joiners, cause=world.cause, now_s=now_s, judgement=judgement)
    if len(joiners) < view.limits.min_nodes:
        return Wait(reason=_too_few(view, len(joiners)))
    cause = _cause(view, world=world, seats=seats)
    return _form(view, joiners=joiners, cause=cause, reason=_reason(world, seats=seats), failures=judgement)


def gather(
    view: LeaderView,
    *,
    joiners: tuple[Member, ...],
    cause: Cause,
    now_s: float,
    judgement: Judgement | None = None,
) -> Verdict:
    """Without survivors: form when all places are taken, or a while after the last arrival."""
    limits = view.limits
    if len(joiners) < limits.min_nodes:
        return Wait(reason=_too_few(view, len(joiners)))
    if len(joiners) >= limits.max_nodes:
        reason = f"nodes here: all {limits.max_nodes}"
        return _form(view, joiners=joiners, cause=cause, reason=reason, failures=judgement)
    until_s = max(view.arrived_s[member.agent] for member in joiners) + limits.first_wait_s
    if now_s < until_s:
        return Wait(until_s=until_s, reason=f"nodes here: {len(joiners)} of at most {limits.max_nodes}")
    reason = f"nodes here: {len(joiners)}, no other came for {limits.first_wait_s:g} s"
    return _form(view, joiners=joiners, cause=cause, reason=reason, failures=judgement)


def reports(view: LeaderView, *, seats: Roster) -> list[tuple[str, FailureReport]]:
    """(agent, report) of the members that are back, a worker's own failure before what it did to its peers."""
    found = [(seat.agent, report) for seat in seats.back if (report := view.members[seat.agent].report) is not None]
    return sorted(found, key=lambda item: item[1].cause is Cause.PEER_LOST)


def judgement(view: LeaderView, *, world: World, seats: Roster) -> Judgement:
    """What the failures up to now amount to."""
    return budget.judge(
        world.failures,
        generation=world.generation,
        reports=reports(view, seats=seats),
        no_progress_limit=view.limits.no_progress_limit,
        node_lost=bool(seats.gone),
    )


def _await(view: LeaderView, *, world: World, seats: Roster, now_s: float) -> Verdict | None:
    """Members that have not come back: ask them, evict the silent, wait for the others up to a limit."""
    wait_s = view.limits.planned_wait_s if world.planned else view.limits.late_wait_s
    until_s = view.world_since_s + wait_s
    nodes = ", ".join(seat.node for seat in seats.active)
    if world.planned:
        if now_s < until_s:
            return Wait(until_s=until_s, reason=f"waiting for {nodes} to finish the step and save")
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
        why = "; ".join(f"{seat.node} is not back and its agent is {result}" for seat, result in dead)
        return Evict(agents=tuple(seat.agent for seat, _ in dead), reason=why)
    if now_s >= until_s:
        return None
    if unasked:
        names = ", ".join(seat.node for seat in unasked)
        return Probe(agents=tuple(seat.agent for seat in unasked), reason=f"not back yet: {names}. Alive?")
    return Wait(until_s=next_s, reason=f"waiting for {nodes}: alive, not back yet")


def _form(
    view: LeaderView, *, joiners: tuple[Member, ...], cause: Cause, reason: str, failures: Judgement | None
) -> Form:
    old = view.world if view.world and view.world.phase is not Phase.CLOSED else None
    seats = seating.arrange(old, joiners=joiners, max_nodes=view.limits.max_nodes)
    first = view.members[seats[0].agent]
    world = World(
        generation=seating.next_generation(view.world, members=view.members.values()),
        phase=Phase.FORMED,
        seats=seats,
        store_address=first.address,
        store_port=first.store_port,
        cause=cause,
        reason=reason,
        left_out=_left_out(view, old=old, seats=seats),
        failures=failures.history if failures else (),
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
    own = [report.cause for _agent, report in reports(view, seats=seats) if report.cause is not Cause.PEER_LOST]
    if world.cause is Cause.NODE_LOST or (seats.gone and not own):
        return Cause.NODE_LOST
    return own[0] if own and not world.planned else world.cause


def _reason(world: World, *, seats: Roster) -> str:
    count = len(seats.back)
    parts = [f"{count} member{'s' if count != 1 else ''} of generation {world.generation} back"]
    for what, who in (("gone", (*seats.gone,)), ("left", (*seats.left, *seats.leaving)), ("late", seats.active)):
        if who:
            parts.append(f"{', '.join(seat.node for seat in who)} {what}")
    if seats.newcomers:
        parts.append(f"{', '.join(sorted(member.node for member in seats.newcomers))} new")
    return "; ".join(parts)


def _too_few(view: LeaderView, count: int) -> str:
    return f"nodes here: {count} of at least {view.limits.min_nodes}"
