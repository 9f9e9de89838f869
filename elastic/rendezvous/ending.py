"""Ending: what the world key says is over for an agent: the job, or a generation that it never took part in. Pure."""

from __future__ import annotations

from elastic.events import Outcome
from elastic.rendezvous.errors import JobClosed
from elastic.rendezvous.model import Member, MemberState, Phase, World


def ending_of(world: World | None, *, agent: str, seen_closed: int) -> JobClosed | None:
    """How it ended: for all, or for this agent alone, which is barred. None: it goes on.

    `seen_closed`: the generation that was over when the agent started.
    """
    if world is None:
        return None
    for barred in world.barred:
        if barred.agent == agent:
            return JobClosed(outcome=Outcome.FAILED, exit_code=barred.exit_code, reason=barred.reason, text=barred.text)
    if world.phase is not Phase.CLOSED or world.generation <= seen_closed:
        return None
    outcome = world.outcome or Outcome.FAILED
    return JobClosed(outcome=outcome, exit_code=world.exit_code, reason=world.reason, text=world.text)


def missed_generation(world: World | None, *, agent: str, ended: int, entered: int = 0) -> int:
    """The generation that an agent without workers is yet to say that it has ended; 0: none. Until it does, it is taken
    for a member at work.

    It was given a seat in it, but that was over before the agent saw it; or it is the one that it `entered` last, and
    the seat for which it had said nothing is not there any more."""
    unsaid = entered if entered > ended else 0
    if world is None:
        return unsaid
    if world.phase is Phase.FORMED and world.generation > max(ended, entered) and world.seat_of(agent):
        return 0
    seated = world.generation if world.phase is Phase.OPEN and world.seat_of(agent) else 0
    owed = max((entry.generation for entry in world.left_out if entry.agent == agent), default=0)
    return seated if seated > ended else max(unsaid, owed if owed > ended else 0)


def unheard_generation(world: World | None, *, member: Member, written_since: bool) -> int:
    """The generation that an agent without workers was given a seat in and must not take; 0: none. It ends this one,
    so that its word is heard in it: it is done, or its own workers failed in the one before.

    `written_since`: its keys were written anew after that world was. Others may have been told in between that it is
    gone, and have gone on without it; they would take it for one that runs nothing.
    """
    if world is None or world.generation <= member.ended_generation or world.seat_of(member.agent) is None:
        return 0
    if member.state is MemberState.DONE:
        return world.generation if world.phase is not Phase.CLOSED else 0
    failed = world.direct and member.report is not None and member.report.is_own
    return world.generation if world.phase is Phase.FORMED and (failed or written_since) else 0


def unheard_end(timeout_s: float | None) -> JobClosed:
    """For an agent that is done and has heard of no other end: its final state is durable."""
    reason = f"done here; the end of the job was not heard of within {timeout_s} s"
    return JobClosed(outcome=Outcome.SUCCEEDED, exit_code=0, reason=reason)
