"""The agent: torchelastic's, with a life of its own between two rendezvous.

It waits for events (a worker's end, a change of the world, a signal) instead of polling, takes ranks from the world
key instead of exchanging them through a store, and leaves restarts to the budget that all agents share: a lost node,
a joining one or a planned leave costs nothing.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import Any, NoReturn

from torch.distributed.elastic.agent.server.api import RunResult, Worker, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import SignalException

from elastic.errors import ElasticError, ExitCode
from elastic.events import Cause, Fencing, JobEnded, Outcome, RoundOpened, WorkerLost, WorkerStarted
from elastic.launch.exits import Ending, Verdict, WorkerExit, cause_of, describe, judge
from elastic.launch.processes import WorkerProcesses
from elastic.launch.stage import Stage
from elastic.rendezvous.errors import JobClosed
from elastic.rendezvous.membership import Membership
from elastic.rendezvous.model import FailureReport
from elastic.world import GENERATION

logger = logging.getLogger(__name__)

SETTLE_S = 1.0
"""How long workers of a broken generation may take to end by themselves: enough to end a commit under way."""
FINISH_S = 60.0
"""How long a node that is done waits for the others: they end at the same step, but their last save may be slower."""
PLANNED_S = 120.0
"""How long a planned regroup may take to reach a step boundary and save."""


class Agent(LocalElasticAgent):
    """Built by torchrun in place of its own agent class; `stage` holds what it works with."""

    def __init__(self, spec: WorkerSpec, *args: Any, stage: Stage, **kwargs: Any) -> None:
        super().__init__(spec, *args, **kwargs)
        self._stage = stage
        self._workers: WorkerProcesses | None = None
        self._grace_s = float(kwargs.get("shutdown_timeout") or 30)

    def _invoke_run(self, role: str = "default") -> RunResult:
        """Generation after generation until the job is over.

        Raises:
            SystemExit: with a documented exit code, where the job does not end in success.
        """
        try:
            self._stage.start(slots=self._worker_group.spec.local_world_size)
            return self._generations()
        except JobClosed as closed:
            return self._closed(closed)
        except SignalException as signalled:
            self._leave(signalled.sigval)
        except ElasticError as error:
            self._end(Outcome.FAILED, error.exit_code, str(error))
        finally:
            if self._workers is not None:
                self._workers.kill()
                self._workers.close()
            self._stage.stop()

    def _generations(self) -> RunResult:
        report: FailureReport | None = None
        while True:
            membership = self._stage.join(report)
            self._start_generation(membership)
            verdict = self._live()
            logger.info("generation %d is over here: %s", membership.generation, verdict.reason)
            if verdict.ending is Ending.FINISHED:
                self._finish()
            report = verdict.report

    def _finish(self) -> NoReturn:
        """This node is done; the others end at the same step. Raises JobClosed."""
        self._stage.coordinator.done()
        closed = self._stage.coordinator.wait_closed(FINISH_S)
        raise closed or JobClosed(
            outcome=Outcome.SUCCEEDED, exit_code=0, reason="done here; the others did not say so yet"
        )

    def _start_generation(self, membership: Membership) -> None:
        group: Any = self._worker_group  # torch declares its fields None and fills them later
        group.workers = _workers_of(membership, group.spec)
        group.store = membership  # only to be there: the ranks were agreed through etcd
        group.group_rank = membership.seat.group_rank
        group.group_world_size = len(membership.world.seats)
        group.master_addr = membership.store_address
        group.master_port = membership.store_port
        os.environ[GENERATION] = str(membership.generation)
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        self._stage.server.begin_generation()
        pids = self._start_workers(group)
        context = self._pcontext
        assert context is not None  # _start_workers made it
        for worker in group.workers:
            worker.id = pids[worker.local_rank]
            self._stage.observer.emit(WorkerStarted(worker_rank=worker.global_rank, pid=worker.id, path="reexec"))
        handlers = context.subprocess_handlers.items()  # type: ignore[attr-defined]
        self._workers = WorkerProcesses(
            {local_rank: handler.proc for local_rank, handler in handlers},
            wake=self._stage.wake,
            clock=self._stage.clock,
        )
        group.state = WorkerState.HEALTHY

    def _live(self) -> Verdict:
        """Wait until this node's part of the generation is over, and end what is left of it."""
        workers = self._workers
        assert workers is not None  # a generation was started
        planned_until_s: float | None = None
        clock = self._stage.clock
        while workers.running and not workers.failed:
            regroup = self._stage.coordinator.regroup()
            if regroup is not None and planned_until_s is None:
                self._stage.observer.fault(regroup.cause)
                self._stage.observer.emit(RoundOpened(cause=regroup.cause, reason=regroup.reason))
                logger.info("regroup: %s", regroup.reason)
                planned_until_s = clock.monotonic_s() + (PLANNED_S if regroup.planned else SETTLE_S)
                if regroup.planned:
                    self._stage.server.regroup()
            left_s = None if planned_until_s is None else planned_until_s - clock.monotonic_s()
            if left_s is not None and left_s <= 0:
                break
            workers.wait(limit_s=left_s)
        return self._settle(workers)

    def _settle(self, workers: WorkerProcesses) -> Verdict:
        # The fault counts from here, before waiting for those that must still end.
        if workers.failed:
            self._stage.observer.fault(Cause.PEER_LOST if self._all_blameless(workers) else Cause.WORKER_EXIT)
        workers.let_end(limit_s=SETTLE_S)
        exits = [self._exit_of(end.local_rank) for end in workers.ended.values()]
        verdict = judge(
            exits,
            step=self._stage.observer.step,
            committed_steps=self._stage.observer.committed_steps,
            killed=frozenset(workers.killed),
        )
        for end in exits:
            if end.meant not in (ExitCode.DONE, ExitCode.REGROUP) and end.pid not in workers.killed:
                lost = WorkerLost(worker_rank=end.rank, pid=end.pid, cause=cause_of(end), reason=describe(end))
                self._stage.observer.emit(lost)
        workers.close()
        self._workers = None
        self._shutdown()  # torch's part: log files and tails
        self._pcontext = None
        return verdict

    def _all_blameless(self, workers: WorkerProcesses) -> bool:
        blameless = (ExitCode.PEER_LOST, ExitCode.REGROUP, ExitCode.DONE)
        return all(self._exit_of(local_rank).meant in blameless for local_rank in workers.ended)

    def _exit_of(self, local_rank: int) -> WorkerExit:
        assert self._workers is not None  # called while settling
        end = self._workers.ended[local_rank]
        return WorkerExit(
            rank=self._worker_group.workers[local_rank].global_rank,
            pid=end.pid,
            exit_code=end.exit_code,
            order=end.order,
            told=self._stage.told(end.pid),
        )

    def _leave(self, signal_number: signal.Signals) -> NoReturn:
        """A planned leave: finish the step, save, go; a second signal ends it at once."""
        logger.info("received %s: finishing the step and leaving", signal_number.name)
        finished = False
        try:
            self._stage.coordinator.leave()
            if self._workers is not None:
                self._stage.server.regroup()
                self._workers.let_end(limit_s=self._grace_s)
                finished = all(end.exit_code == 0 for end in self._workers.ended.values())
        except SignalException:
            logger.warning("a second signal: ending at once")
        if finished:
            self._end(Outcome.SUCCEEDED, ExitCode.DONE, "the run finished while leaving")
        self._end(Outcome.PREEMPTED, ExitCode.PREEMPTED, f"left on {signal_number.name}; please requeue")

    def _closed(self, closed: JobClosed) -> RunResult:
        if closed.outcome is not Outcome.SUCCEEDED:
            self._end(closed.outcome, closed.exit_code, f"{closed}\n{closed.text.rstrip()}".rstrip())
        self._stage.observer.emit(JobEnded(outcome=Outcome.SUCCEEDED, exit_code=0, reason=closed.reason))
        values: dict[int, Any] = {worker.global_rank: None for worker in self._worker_group.workers}
        return RunResult(state=WorkerState.SUCCEEDED, return_values=values)

    def _end(self, outcome: Outcome, exit_code: int, text: str) -> NoReturn:
        if exit_code == ExitCode.FENCED:
            self._stage.observer.emit(Fencing(what="agent", reason=text))
        self._stage.observer.emit(JobEnded(outcome=outcome, exit_code=int(exit_code), reason=text[:2000]))
        if exit_code != ExitCode.DONE:
            last_word(text)
        raise SystemExit(int(exit_code))


def last_word(text: str) -> None:
    """The last thing on the screen is what a person needs first."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def _workers_of(membership: Membership, spec: WorkerSpec) -> list[Worker]:
    size = membership.world.world_size
    base = membership.seat.base_rank
    return [
        Worker(
            local_rank=local_rank,
            global_rank=base + local_rank,
            role_rank=base + local_rank,
            world_size=size,
            role_world_size=size,
        )
        for local_rank in range(spec.local_world_size)
    ]
