"""Machine: what the leader does next, from what it sees. The whole protocol's decisions, with their reasons.

    no world / CLOSED --enough nodes--> FORMED g --lost, failed, joined, left--> OPEN g --all back--> FORMED g' > g
                                          | +--------all done, or beyond help------> CLOSED g <----------+
                                          +--lost, and nobody said anything--> FORMED g' > g

Pure: `decide` looks at a view and names one verdict; the leader does it, looks again, and asks again.
"""

from __future__ import annotations

import dataclasses

from elastic.errors import Lack
from elastic.events import Cause, Outcome
from elastic.rendezvous import awaited, round_open
from elastic.rendezvous.awaited import Hope
from elastic.rendezvous.budget import Judgement
from elastic.rendezvous.direct import form_directly, unasked
from elastic.rendezvous.gathering import complaints, gather, rested, welcome
from elastic.rendezvous.model import FailureReport, Member, Phase, ProbeResult, Seat, World
from elastic.rendezvous.verdict import Close, Open, Probe, Verdict, Wait
from elastic.rendezvous.view import LeaderView, Roster, asks, coming, roster, understood
from elastic.rendezvous.wanted import is_at_rest, wanted
from elastic.rendezvous.wording import listed

# What members say where others, or the way to them, are to blame.
_BY_OTHERS = frozenset({Cause.PEER_LOST, Cause.GROUP_FAILED})


def decide(view: LeaderView, *, now_s: float) -> Verdict:
    """What to do now. `now_s` is on the clock of the view's times."""
    world = view.world
    if world is None or world.phase is Phase.CLOSED:
        return _start(view, closed=world, now_s=now_s)
    seats = roster(view)
    judgement = round_open.judgement(view, world=world, seats=seats)
    if judgement.exit_code is not None and not _spared(view, seats=seats, judgement=judgement):
        judgement = round_open.judgement(view, world=world, seats=seats, needed=True)
        hope = awaited.hope(view, world=world, seats=seats, judgement=judgement, now_s=now_s)
        if judgement.exit_code is not None and hope is Hope.NONE and judgement.lacks is not Lack.NEWEST:
            return round_open.close(world, judgement=judgement)
    if seats.done and (ending := _finished(world, seats=seats)) is not None:
        return ending
    if world.phase is Phase.FORMED:
        return _formed(view, world=world, seats=seats, judgement=judgement, now_s=now_s)
    if world.planned and not is_at_rest(view, world=world, seats=seats):
        fault = _fault(view, world=world, seats=seats, judgement=judgement, now_s=now_s)
        # Who has no key but answers takes its last step with the others; it is not waited for.
        if fault is not None and not isinstance(fault, Wait):
            return fault
    return round_open.decide(view, world=world, seats=seats, now_s=now_s)


def _start(view: LeaderView, *, closed: World | None, now_s: float) -> Verdict:
    """A first start, or one after the job was closed: then only agents that came after it take part."""
    asking = (m for m in view.members.values() if asks(m) and (not closed or _came_after(m, closed)))
    joiners = understood(view, asking, world=None)
    if not joiners:
        over = f"generation {closed.generation} is closed and no agent" if closed else "no agent"
        return Wait(reason=f"{over} asks to start")
    if view.paused:
        return Wait(reason=f"paused ({view.asked})")
    gathering = gather(view, seats=Roster(newcomers=joiners), now_s=now_s)
    late = coming(view, world=None, since=closed.generation if closed else 0)
    return round_open.start(view, gathering=gathering, coming=late, cause=Cause.START, now_s=now_s)


def _spared(view: LeaderView, *, seats: Roster, judgement: Judgement) -> bool:
    """Whether the job can go on without the one agent whose workers fail."""
    if judgement.alone is None:
        return False
    others = {seat.agent for seat in (*seats.active, *seats.back)} | {member.agent for member in seats.newcomers}
    return len(others - {judgement.alone.agent}) >= view.limits.min_nodes


def _fault(view: LeaderView, *, world: World, seats: Roster, judgement: Judgement, now_s: float) -> Verdict | None:
    """What ends a generation at once: a failure, members that do not reach each other, a member that is gone."""
    explained = all(one.report.cause in _BY_OTHERS for one in round_open.reports(view, seats=seats))
    if explained and (cut := _cut(view, world=world, seats=seats, judgement=judgement)) is not None:
        return cut
    if seats.back:
        failed = _failed(view, world=world, seats=seats, judgement=judgement, now_s=now_s)
        if failed is not None:
            return failed
    return _lost(view, world=world, seats=seats, judgement=judgement, now_s=now_s)


def _came_after(member: Member, closed: World) -> bool:
    return member.seen_closed >= closed.generation


def _finished(world: World, *, seats: Roster) -> Close | None:
    """Done means that the final state is durable: whoever is lost or failed now changes nothing."""
    if seats.active or seats.leaving:
        over = world.phase is Phase.OPEN and not world.planned
        if not (over or seats.gone or seats.back):
            return None
    done = _nodes(seats.done)
    others = (*seats.gone, *seats.back, *seats.left)
    but = f"; {_nodes(others)} ended otherwise" if others else ""
    reason = f"done on {done}{but}"
    closed = dataclasses.replace(
        world, phase=Phase.CLOSED, outcome=Outcome.SUCCEEDED, exit_code=0, reason=reason, planned=False
    )
    return Close(world=closed, reason=reason)


def _formed(view: LeaderView, *, world: World, seats: Roster, judgement: Judgement, now_s: float) -> Verdict:
    if (fault := _fault(view, world=world, seats=seats, judgement=judgement, now_s=now_s)) is not None:
        return fault
    if seats.left:
        reason = f"{_nodes(seats.left)} left without waiting for the others"
        return _open(world, cause=Cause.NODE_LEFT, reason=reason, judgement=judgement, leaving=seats.left)
    if seats.leaving:
        reason = f"{_nodes(seats.leaving)} is leaving: finish the step and save first"
        return _open(
            world, cause=Cause.NODE_LEFT, reason=reason, judgement=judgement, planned=True, leaving=seats.leaving
        )
    if (wish := wanted(view, world=world, seats=seats)) is not None:
        opened = dataclasses.replace(world, room=wish.room)
        return _open(opened, cause=wish.cause, reason=wish.reason, judgement=judgement, planned=True)
    if seats.newcomers and seats.done:
        return Wait(reason="the job is finishing; newcomers wait for its end")
    room = len(world.seats) < view.limits.max_nodes
    welcomed = welcome(view, world=world, seats=seats) if room else ()
    awake, resting, rested_s = rested(view, members=welcomed, now_s=now_s)
    if awake:
        nodes = listed(sorted(member.node for member in awake))
        reason = f"{nodes} joined: finish the step first"
        return _open(world, cause=Cause.NODE_JOINED, reason=reason, judgement=judgement, planned=True)
    spares = f", {len(seats.newcomers)} waiting as spare" if seats.newcomers else ""
    barred = sorted({entry.node for entry in world.barred} & {member.node for member in resting})
    spares += f"; {', '.join(barred)} was left out before and rests" if barred else ""
    count = f"{len(world.seats)} node{'s' if len(world.seats) != 1 else ''}"
    return Wait(until_s=rested_s, reason=f"generation {world.generation} is at work on {count}{spares}")


def _failed(view: LeaderView, *, world: World, seats: Roster, judgement: Judgement, now_s: float) -> Open | None:
    """Open for a member that is back with a report. In a planned round, back without one is what was asked for."""
    reports = round_open.reports(view, seats=seats)
    if reports:
        report = reports[0].report
        reason = f"worker {report.rank} on {reports[0].node} {_what(report)} at step {report.step}"
        if report.cause is not Cause.PEER_LOST:
            reason += f"; {judgement.reason}"
        if awaited.hope(view, world=world, seats=seats, judgement=judgement, now_s=now_s) is Hope.TO_COME:
            reason += f", others have {view.limits.holders_wait_s:g} s to come"
        return _open(world, cause=report.cause, reason=reason, judgement=judgement)
    if world.phase is Phase.OPEN:
        return None
    reason = f"{_nodes(seats.back)} asks for a new generation and gives no reason"
    return _open(world, cause=Cause.PEER_LOST, reason=reason, judgement=judgement)


def _cut(view: LeaderView, *, world: World, seats: Roster, judgement: Judgement) -> Open | None:
    """Members do not reach each other and do not advance: whoever is alive comes together anew."""
    found = complaints(view, world=world, seats=seats)
    if not found:
        return None
    told = [view.members[seat.agent].report for seat, _nodes_named in found]
    unformed = any(report is not None and report.cause is Cause.GROUP_FAILED for report in told)
    reason = listed((f"{seat.node} does not reach {listed(named)}" for seat, named in found), by="; ")
    cause = Cause.GROUP_FAILED if unformed else Cause.NODE_LOST
    return _open(world, cause=cause, reason=f"{reason}, and does not advance", judgement=judgement)


def _lost(view: LeaderView, *, world: World, seats: Roster, judgement: Judgement, now_s: float) -> Verdict | None:
    """A seat without a key: its lease ended. One that answers goes on with its generation, and is asked again.

    It ends its own workers when it is cut off from the store for long; should the others stand still, they say so.
    """
    doubtful: list[Seat] = []
    dead: list[str] = []
    until_s: float | None = None
    for seat in seats.gone:
        absent_s = view.absent_s[seat.agent]
        answer = view.answer(seat.agent, since_s=absent_s)
        if answer is None or (now_s >= answer.at_s + view.limits.reprobe_s and answer.result is ProbeResult.ALIVE):
            doubtful.append(seat)
        elif answer.result is not ProbeResult.ALIVE:
            dead.append(f"{seat.node} is gone: its lease ended and its agent is {answer.result}")
        elif now_s >= absent_s + view.limits.unconfirmed_s:
            dead.append(f"{seat.node} is gone: its agent answers but has had no key for {now_s - absent_s:.0f} s")
        else:
            next_s = answer.at_s + view.limits.reprobe_s
            until_s = next_s if until_s is None else min(until_s, next_s)
    if dead:
        reason = listed(dead, by="; ")
        if len(dead) == len(seats.gone) and world.phase is Phase.FORMED:
            direct = form_directly(view, world=world, seats=seats, reason=reason, judgement=judgement, now_s=now_s)
            if direct is not None:
                return direct
        return _open(world, cause=Cause.NODE_LOST, reason=reason, judgement=judgement)
    if doubtful:
        others = unasked(view, seats=seats) if world.phase is Phase.FORMED else ()
        agents = tuple(seat.agent for seat in (*doubtful, *others))
        return Probe(agents=agents, reason=f"keys gone: {_nodes(tuple(doubtful))}. Alive?")
    if until_s is not None:
        return Wait(until_s=until_s, reason=f"{_nodes(seats.gone)} answers and has no key: its generation goes on")
    return None


def _open(
    world: World,
    *,
    cause: Cause,
    reason: str,
    judgement: Judgement,
    planned: bool = False,
    leaving: tuple[Seat, ...] = (),
) -> Open:
    opened = dataclasses.replace(
        world,
        phase=Phase.OPEN,
        cause=cause,
        reason=reason,
        planned=planned,
        failures=judgement.history,
        leaving=tuple(dict.fromkeys((*world.leaving, *(seat.agent for seat in leaving)))),
    )
    return Open(world=opened, reason=reason)


def _what(report: FailureReport) -> str:
    match report.cause:
        case Cause.PEER_LOST:
            return "lost a peer"
        case Cause.WORKER_SIGNAL:
            return "was killed by a signal"
        case Cause.WORKER_HUNG:
            return f"hung ({report.text[:200]})"
        case _:
            last_line = report.text.strip().rpartition("\n")[2]
            return f"failed ({last_line[:200]})" if last_line else "failed"


def _nodes(seats: tuple[Seat, ...]) -> str:
    return listed(seat.node for seat in seats)
