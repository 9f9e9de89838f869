"""Machine: what the leader does next, from what it sees. The whole protocol's decisions, with their reasons.

    no world / CLOSED --enough nodes--> FORMED g --lost, failed, joined, left--> OPEN g --all back--> FORMED g' > g
                                           +--------all done, or beyond help--------> CLOSED g <----------+

Pure: `decide` looks at a view and names one verdict; the leader does it, looks again, and asks again.
"""

from __future__ import annotations

import dataclasses

from elastic.events import Cause, Outcome
from elastic.rendezvous import round_open
from elastic.rendezvous.budget import Judgement
from elastic.rendezvous.model import FailureReport, Member, Phase, ProbeResult, Seat, World
from elastic.rendezvous.verdict import Close, Open, Probe, Verdict, Wait
from elastic.rendezvous.view import LeaderView, Roster, asks, roster


def decide(view: LeaderView, *, now_s: float) -> Verdict:
    """What to do now. `now_s` is on the clock of the view's times."""
    world = view.world
    if world is None or world.phase is Phase.CLOSED:
        return _start(view, closed=world, now_s=now_s)
    seats = roster(view)
    judgement = round_open.judgement(view, world=world, seats=seats)
    if judgement.exit_code is not None:
        return _close(world, outcome=Outcome.FAILED, judgement=judgement)
    if seats.done and (ending := _finished(world, seats=seats)) is not None:
        return ending
    if world.phase is Phase.FORMED:
        return _formed(view, world=world, seats=seats, judgement=judgement, now_s=now_s)
    if world.planned:
        if seats.back and (failed := _failed(view, world=world, seats=seats, judgement=judgement)) is not None:
            return failed
        if (lost := _lost(view, world=world, seats=seats, judgement=judgement, now_s=now_s)) is not None:
            return lost
    return round_open.decide(view, world=world, seats=seats, judgement=judgement, now_s=now_s)


def _start(view: LeaderView, *, closed: World | None, now_s: float) -> Verdict:
    """A first start, or one after the job was closed: then only agents that came after it take part."""
    joiners = tuple(
        member for member in view.members.values() if asks(member) and (not closed or _came_after(member, closed))
    )
    if not joiners:
        over = f"generation {closed.generation} is closed and no agent" if closed else "no agent"
        return Wait(reason=f"{over} asks to start")
    return round_open.gather(view, joiners=joiners, cause=Cause.START, now_s=now_s)


def _came_after(member: Member, closed: World) -> bool:
    return member.seen_closed >= closed.generation


def _finished(world: World, *, seats: Roster) -> Close | None:
    """Done means that the final state is durable: whoever is lost or failed now changes nothing."""
    if seats.active or seats.leaving:
        over = world.phase is Phase.OPEN and not world.planned
        if not (over or seats.gone or seats.back):
            return None
    done = ", ".join(seat.node for seat in seats.done)
    others = (*seats.gone, *seats.back, *seats.left)
    but = f"; {', '.join(seat.node for seat in others)} ended otherwise" if others else ""
    closed = _closed(world, outcome=Outcome.SUCCEEDED, exit_code=0, reason=f"done on {done}{but}")
    return Close(world=closed, reason=closed.reason)


def _close(world: World, *, outcome: Outcome, judgement: Judgement) -> Close:
    closed = _closed(
        world, outcome=outcome, exit_code=judgement.exit_code or 0, reason=judgement.reason, text=judgement.text
    )
    return Close(world=dataclasses.replace(closed, failures=judgement.history), reason=judgement.reason)


def _closed(world: World, *, outcome: Outcome, exit_code: int, reason: str, text: str = "") -> World:
    return dataclasses.replace(
        world, phase=Phase.CLOSED, outcome=outcome, exit_code=exit_code, reason=reason, text=text, planned=False
    )


def _formed(view: LeaderView, *, world: World, seats: Roster, judgement: Judgement, now_s: float) -> Verdict:
    if seats.back and (failed := _failed(view, world=world, seats=seats, judgement=judgement)) is not None:
        return failed
    if (lost := _lost(view, world=world, seats=seats, judgement=judgement, now_s=now_s)) is not None:
        return lost
    if seats.left:
        reason = f"{_nodes(seats.left)} left without waiting for the others"
        return _open(world, cause=Cause.NODE_LEFT, reason=reason, judgement=judgement, leaving=seats.left)
    if seats.leaving:
        reason = f"{_nodes(seats.leaving)} is leaving: finish the step and save first"
        return _open(
            world, cause=Cause.NODE_LEFT, reason=reason, judgement=judgement, planned=True, leaving=seats.leaving
        )
    if seats.newcomers and seats.done:
        return Wait(reason="the job is finishing; newcomers wait for its end")
    if seats.newcomers and len(world.seats) < view.limits.max_nodes:
        nodes = ", ".join(sorted(member.node for member in seats.newcomers))
        reason = f"{nodes} joined: finish the step and save first"
        return _open(world, cause=Cause.NODE_JOINED, reason=reason, judgement=judgement, planned=True)
    spares = f", {len(seats.newcomers)} waiting as spare" if seats.newcomers else ""
    count = f"{len(world.seats)} node{'s' if len(world.seats) != 1 else ''}"
    return Wait(reason=f"generation {world.generation} is at work on {count}{spares}")


def _failed(view: LeaderView, *, world: World, seats: Roster, judgement: Judgement) -> Open | None:
    """Open for a member that is back with a report. In a planned round, back without one is what was asked for."""
    reports = round_open.reports(view, seats=seats)
    if reports:
        _agent, report = reports[0]
        node = next(seat.node for seat in seats.back if seat.agent == reports[0][0])
        reason = f"worker {report.rank} on {node} {_what(report)} at step {report.step}"
        if report.cause is not Cause.PEER_LOST:
            reason += f"; {judgement.reason}"
        return _open(world, cause=report.cause, reason=reason, judgement=judgement)
    if world.phase is Phase.OPEN:
        return None
    reason = f"{_nodes(seats.back)} asks for a new generation and gives no reason"
    return _open(world, cause=Cause.PEER_LOST, reason=reason, judgement=judgement)


def _lost(view: LeaderView, *, world: World, seats: Roster, judgement: Judgement, now_s: float) -> Verdict | None:
    """A seat without a key: its lease ended. One that answers gets a moment to write its key again."""
    unasked = [seat for seat in seats.gone if view.answer(seat.agent, since_s=view.absent_s[seat.agent]) is None]
    dead: list[str] = []
    until_s: float | None = None
    for seat in seats.gone:
        answer = view.answer(seat.agent, since_s=view.absent_s[seat.agent])
        if answer is None:
            continue
        grace_until_s = view.absent_s[seat.agent] + view.limits.grace_s
        if answer.result is not ProbeResult.ALIVE:
            dead.append(f"{seat.node} is gone: its lease ended and its agent is {answer.result}")
        elif now_s >= grace_until_s:
            dead.append(f"{seat.node} is gone: its agent answers but has not written its key again")
        else:
            until_s = grace_until_s if until_s is None else min(until_s, grace_until_s)
    if dead:
        return _open(world, cause=Cause.NODE_LOST, reason="; ".join(dead), judgement=judgement)
    if unasked:
        agents = tuple(seat.agent for seat in unasked)
        return Probe(agents=agents, reason=f"keys gone: {_nodes(tuple(unasked))}. Alive?")
    if until_s is not None:
        return Wait(until_s=until_s, reason=f"waiting for {_nodes(seats.gone)} to write its key again")
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
        case _:
            last_line = report.text.strip().rpartition("\n")[2]
            return f"failed ({last_line[:200]})" if last_line else "failed"


def _nodes(seats: tuple[Seat, ...]) -> str:
    return ", ".join(seat.node for seat in seats)
