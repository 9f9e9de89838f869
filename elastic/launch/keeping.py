"""Keeping: what workers have that wait for another generation, when their node is to go. Pure but for `look`.

If all nodes go at once, nobody else may have it. One worker can save it for all, as long as no other generation is
formed: the leader's. Whoever does not lead waits until it does, or need not.
"""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass

from elastic.errors import StoreError
from elastic.rendezvous.coordinator import Coordinator
from elastic.rendezvous.model import Phase, World

LOOK_S = 0.5
"""How often to see whether others have saved it."""


class Duty(enum.Enum):
    """What a node that is to go does about it."""

    NOTHING = "nothing"
    WAIT = "wait"
    SAVE = "save"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The duty, and why."""

    duty: Duty
    reason: str


def judge(*, step: int, generation: int, world: World | None, record: str | None, leads: bool) -> Verdict:
    """Args:
    step: the newest that a worker of this node stands at, in the `generation` that it was last in.
    world: the newest that is known. record: of the last commit, as JSON.
    """
    if world is not None and world.generation > generation and world.phase is Phase.FORMED:
        return Verdict(duty=Duty.NOTHING, reason=f"others go on in generation {world.generation}")
    durable = int(json.loads(record)["iteration"]) if record else 0
    if durable >= step:
        return Verdict(duty=Duty.NOTHING, reason=f"step {durable} is durable")
    if not leads:
        return Verdict(duty=Duty.WAIT, reason="another node leads, and saves it or goes")
    return Verdict(duty=Duty.SAVE, reason=f"step {step} is durable nowhere, but step {durable}")


def look(coordinator: Coordinator, *, step: int) -> Verdict:
    """What this agent is to do about workers that wait at a step. Where the store does not answer: wait."""
    try:
        return judge(
            step=step,
            generation=coordinator.generation,
            world=coordinator.world(),
            record=coordinator.commit_record(),
            leads=coordinator.is_leader,
        )
    except StoreError as error:
        return Verdict(duty=Duty.WAIT, reason=str(error))
