"""Ending: what the world key says about the end of an agent's part in the job. Pure."""

from __future__ import annotations

from elastic.events import Outcome
from elastic.rendezvous.errors import JobClosed
from elastic.rendezvous.model import Phase, World


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
