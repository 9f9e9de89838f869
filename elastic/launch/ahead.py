"""Ahead: workers of a node that comes to others at work build their job before it asks to be let in. `judge` is pure.

So nobody waits for more than the state. They wait for their place on the same line as workers that stay.
"""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.utils.api import macros

from elastic.errors import ExitCode, UsageError
from elastic.events import Notice
from elastic.launch.processes import WorkerProcesses
from elastic.launch.stage import Stage
from elastic.launch.starting import Starter
from elastic.link import Failure
from elastic.rendezvous.model import Phase, World

logger = logging.getLogger(__name__)

LOOK_S = 0.5
AT_REST_S = 2.0
"""A world that is not at work for so long needs this node, most likely."""
PLANNED_S = 30.0
"""The same where its members are to finish a step first."""


class Step(enum.Enum):
    """What a node does next."""

    WAIT = "wait"
    ASK = "ask"
    AFRESH = "afresh"
    """Ask with nothing built: its workers are started when they have a place."""
    GO = "go"
    """Do not disturb the others: it could not work with them."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The step, and why."""

    step: Step
    reason: str


@dataclass(frozen=True, kw_only=True)
class Situation:
    """How far a node is. `rests_s`: for how long the world has not been at work."""

    workers: int
    built: int
    failed: Failure | None
    """What a worker ended with."""
    world: World | None
    rests_s: float
    spent_s: float
    limit_s: float


def judge(found: Situation) -> Verdict:
    """Whether to ask to be let in now."""
    if found.failed is not None:
        if found.failed.exit_code == ExitCode.USAGE:
            return Verdict(step=Step.GO, reason=found.failed.text)
        if found.failed.exit_code == ExitCode.DONE:
            reason = "the job ended with exit code 0 while it was built; here it would be taken for done"
            return Verdict(step=Step.GO, reason=reason)
        return Verdict(step=Step.AFRESH, reason=found.failed.text.strip().rpartition("\n")[2])
    if found.built >= found.workers:
        return Verdict(step=Step.ASK, reason=f"the job is built, in {found.spent_s:.1f} s")
    if found.world is None or found.world.phase is Phase.CLOSED:
        return Verdict(step=Step.ASK, reason="there is no world any more")
    if found.spent_s >= found.limit_s:
        return Verdict(
            step=Step.ASK, reason=f"the job is not built within {found.limit_s:g} s; others will wait for it"
        )
    if found.rests_s >= (PLANNED_S if found.world.planned else AT_REST_S):
        return Verdict(step=Step.ASK, reason="the others do not train any more; the job is still being built")
    return Verdict(step=Step.WAIT, reason=f"{found.built} of {found.workers} workers have built the job")


def build_ahead(stage: Stage, starter: Starter, spec: WorkerSpec) -> None:
    """Before the first generation: where one is at work already, build and come back when it is time to ask.

    Raises:
        SignalException: this node is to leave. Fenced: it is another's. UsageError: it lacks what the job needs.
    """
    world = stage.coordinator.world()
    if not stage.build_ahead_s or world is None or world.phase is not Phase.FORMED:
        return
    assert stage.ready is not None  # or nothing would be built ahead
    logger.info("generation %d is at work: the job is built before others make room for it", world.generation)
    stage.ready.wait()
    stage.signals.check()
    slots, began_s = spec.local_world_size, stage.clock.monotonic_s()
    processes = {
        local_rank: starter.ahead(
            str(spec.entrypoint), tuple(macros.substitute(list(spec.args), str(local_rank))),
            local_rank=local_rank, slots=slots,
        )
        for local_rank in range(slots)
    }  # fmt: skip
    workers = WorkerProcesses(processes, wake=stage.wake, clock=stage.clock)
    try:
        verdict = _wait(stage, workers, slots=slots, began_s=began_s)
        if verdict.step is Step.GO:
            raise UsageError(verdict.reason)
        if verdict.step is Step.AFRESH:
            workers.kill()
            stage.observer.emit(Notice(text=f"the job is built only once there is a place for it: {verdict.reason}"))
        else:
            logger.info("asking to be let in: %s", verdict.reason)
    finally:
        starter.kept = workers.left
        workers.close()


def _wait(stage: Stage, workers: WorkerProcesses, *, slots: int, began_s: float) -> Verdict:
    rests_since_s: float | None = None
    while True:
        stage.signals.check()
        stage.coordinator.check()
        now_s, world = stage.clock.monotonic_s(), stage.coordinator.world()
        if world is not None and world.phase is Phase.FORMED:
            rests_since_s = None
        elif rests_since_s is None:
            rests_since_s = now_s
        verdict = judge(
            Situation(
                workers=slots,
                built=len(set(workers.pids) & set(stage.staying)),
                failed=_failed(stage, workers),
                world=world,
                rests_s=0.0 if rests_since_s is None else now_s - rests_since_s,
                spent_s=now_s - began_s,
                limit_s=stage.build_ahead_s,
            )
        )
        if verdict.step is not Step.WAIT:
            return verdict
        workers.wait(limit_s=LOOK_S)


def _failed(stage: Stage, workers: WorkerProcesses) -> Failure | None:
    """What a worker has ended with; None while none has."""
    for ended in workers.ended.values():
        unheard = f"a worker ended with exit code {ended.exit_code}"
        return stage.told(ended.pid) or Failure(exit_code=ended.exit_code, step=0, signature="", text=unheard)
    return None
