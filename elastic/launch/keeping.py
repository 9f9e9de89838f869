"""Keeping: what workers have that wait for another generation, when their node is to go. `judge` is pure.

If all nodes go at once, nobody else may have it. One worker can save it for all, as long as no other generation is
formed: the leader's. Whoever does not lead waits until it does, or need not.
"""

from __future__ import annotations

import enum
import json
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

from elastic.errors import StoreError
from elastic.launch.processes import WorkerProcesses
from elastic.launch.stage import Stage
from elastic.link import Control
from elastic.rendezvous.coordinator import Coordinator
from elastic.rendezvous.model import Phase, World

logger = logging.getLogger(__name__)

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


def keep(stage: Stage, workers: WorkerProcesses, *, until_s: float) -> None:
    """Workers that wait may have what nobody else has, if all leave: one saves it. `until_s` by the stage's clock."""
    step = max((stays.step for stays in stage.staying.values()), default=0)
    if not step:
        return  # they have not been in the run
    verdict = look(stage.coordinator, step=step)
    while verdict.duty is Duty.WAIT and not stage.signals.hurried and stage.clock.monotonic_s() < until_s:
        workers.wait(limit_s=LOOK_S)
        verdict = look(stage.coordinator, step=step)
    if verdict.duty is Duty.SAVE and workers.left:
        chosen = workers.left[min(workers.left)].pid
        logger.info("the worker with pid %d saves what it has: %s", chosen, verdict.reason)
        stage.server.ask(chosen, Control.KEEP)
        let_end(stage, workers, until_s=until_s, staying=lambda: set(workers.pids) - {chosen})


def let_end(stage: Stage, workers: WorkerProcesses, *, until_s: float, staying: Callable[[], Collection[int]]) -> None:
    """Wait for the ends of those that do not stay, at most until then; a second signal ends them at once."""
    limit_s = max(0.0, until_s - stage.clock.monotonic_s())
    workers.let_end(limit_s=limit_s, hurry=lambda: stage.signals.hurried, staying=staying)
