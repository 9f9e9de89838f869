"""The agent: torchelastic's, with a life of its own between two rendezvous.

It waits for events (a worker's end, a change of the world, a signal) instead of polling, takes ranks from the world
key instead of exchanging them through a store, and leaves restarts to the budget that all agents share: a lost node,
a joining one or a planned leave costs nothing.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from typing import Any, NoReturn

from torch.distributed.elastic.agent.server.api import RunResult, Worker, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import SignalException

from elastic.errors import ElasticError, ExitCode, Preempted, UsageError
from elastic.events import (
    Cause,
    Fencing,
    JobEnded,
    LeaveAsked,
    Outcome,
    RoundOpened,
    WorkerLost,
    WorkerStarted,
    WorkerStayed,
)
from elastic.launch.ahead import build_ahead
from elastic.launch.exits import Ending, Verdict, WorkerExit, cause_of, describe, fault_of, judge, staying_as
from elastic.launch.forked import path_of
from elastic.launch.keeping import keep, let_end
from elastic.launch.processes import Process, WorkerProcesses
from elastic.launch.stage import Stage
from elastic.launch.stall import kill_stopped
from elastic.launch.stall_watch import Finding
from elastic.launch.starting import Starter, workers_of
from elastic.launch.torch_details import handler_with, take_starts
from elastic.link import Control
from elastic.rendezvous.errors import JobClosed
from elastic.rendezvous.membership import Membership, Regroup
from elastic.rendezvous.model import FailureReport, Phase
from elastic.world import GENERATION, GENERATION_SECRET, GOES_BACK

logger = logging.getLogger(__name__)

SETTLE_S = 1.0
"""How long workers of a broken generation may take to end or to stay: enough to end a commit under way."""
SETTLE_STEPS = 2.0
"""The same in steps, where these take longer: who computes notices at the end of a micro-batch at the latest."""
MOST_SETTLE_S = 30.0
VAIN_S = 0.2
"""The same where they wait for peers that were found silent: nothing was done for longer than that already."""
FINISH_S = 60.0
"""How long a node that is done waits for the others: they end at the same step, but their last save may be slower."""
_FINISH_SLICE_S = 0.5
PLANNED_S = 120.0
"""How long a planned regroup may take to reach a step boundary and save."""


class Agent(LocalElasticAgent):
    """Built by torchrun in place of its own agent class; `stage` holds what it works with."""

    def __init__(self, spec: WorkerSpec, *args: Any, stage: Stage, **kwargs: Any) -> None:
        super().__init__(spec, *args, **kwargs)
        self._stage = stage
        self._workers: WorkerProcesses | None = None
        self._hung: dict[int, str] = {}  # by pid: why it was ended as one that hangs
        forks = stage.ready.fork if stage.ready is not None else _none
        self._starter = Starter(
            handler_with(forks, lend=stage.lend),
            place=lambda pid, place: stage.server.place(pid, place),
            extra=self._told_anew,
        )
        self._grace_s = float(kwargs.get("shutdown_timeout") or 30)

    def _invoke_run(self, role: str = "default") -> RunResult:
        """Generation after generation until the job is over.

        Raises:
            SystemExit: with a documented exit code, where the job does not end in success.
        """
        try:
            return self._until_told()
        except JobClosed as closed:
            return self._closed(closed)
        except Preempted as error:
            self._end(Outcome.PREEMPTED, error.exit_code, str(error))
        except ElasticError as error:
            self._end(Outcome.FAILED, error.exit_code, str(error))
        finally:
            if self._workers is not None:
                self._workers.kill()
                self._workers.close()
            self._starter.drop()
            self._stage.stop()

    def _until_told(self) -> RunResult:
        if not isinstance(self._worker_group.spec.entrypoint, str):
            raise UsageError("workers must be started as programs; leave out torchrun's --run-path")
        try:
            take_starts(self._starter)
            self._stage.start(slots=self._worker_group.spec.local_world_size)
            return self._generations()
        except SignalException:
            self._leave(self._stage.signals.first)

    def _generations(self) -> RunResult:
        report: FailureReport | None = None
        build_ahead(self._stage, self._starter, self._worker_group.spec)
        while True:
            membership = self._join(report)
            self._start_generation(membership)
            verdict = self._live()
            logger.info("generation %d is over here: %s", membership.generation, verdict.reason)
            if verdict.ending is Ending.FINISHED:
                self._finish()
            report = verdict.report

    def _join(self, report: FailureReport | None) -> Membership:
        try:
            return self._stage.join(report)
        except Preempted:
            self._stage.signals.check()
            raise

    def _finish(self) -> NoReturn:
        """This node is done; the others end at the same step. Raises JobClosed."""
        coordinator, clock = self._stage.coordinator, self._stage.clock
        coordinator.done()
        until_s = clock.monotonic_s() + FINISH_S
        while True:
            closed = coordinator.wait_closed(_FINISH_SLICE_S)
            world = coordinator.world()
            heard = world is not None and world.phase is Phase.CLOSED
            # A signal ends only the waiting: what is done is done.
            if heard or self._stage.signals.received or clock.monotonic_s() >= until_s:
                raise closed

    def _start_generation(self, membership: Membership) -> None:
        group: Any = self._worker_group  # torch declares its fields None and fills them later
        world = membership.world
        group.workers = workers_of(membership, group.spec)
        group.store = membership  # only to be there: the ranks were agreed through etcd
        group.group_rank = membership.seat.group_rank
        group.group_world_size = world.nodes
        group.master_addr = membership.store_address
        group.master_port = membership.store_port
        told = {GENERATION: world.generation, GENERATION_SECRET: world.secret, GOES_BACK: int(world.goes_back)}
        self._stage.export({name: str(value) for name, value in told.items()})
        self._stage.begin_generation(membership.generation)
        self._stage.name_workers({each.local_rank: each.global_rank for each in group.workers}, membership.generation)
        pids = self._start_workers(group)
        context = self._pcontext
        assert context is not None  # _start_workers made it
        handlers = context.subprocess_handlers.items()  # type: ignore[attr-defined]
        processes = {local_rank: handler.proc for local_rank, handler in handlers}
        for worker in group.workers:
            worker.id = pids[worker.local_rank]
            self._tell_started(worker, processes[worker.local_rank])
        self._workers, self._hung = WorkerProcesses(processes, wake=self._stage.wake, clock=self._stage.clock), {}
        group.state = WorkerState.HEALTHY
        self._stage.stall.begin(membership)

    def _told_anew(self) -> dict[str, str]:
        """What changes for a worker that stays, beside torch's own variables."""
        return {name: os.environ[name] for name in (GENERATION, GENERATION_SECRET, GOES_BACK)}

    def _tell_started(self, worker: Worker, process: Process) -> None:
        rank, pid = worker.global_rank, worker.id
        if worker.local_rank in self._starter.stayed:
            self._stage.observer.emit(WorkerStayed(worker_rank=rank, pid=pid))
        else:
            self._stage.observer.emit(WorkerStarted(worker_rank=rank, pid=pid, path=path_of(process)))

    def _live(self) -> Verdict:
        """Wait until this node's part of the generation is over, and end what is left of it."""
        workers = self._workers
        assert workers is not None  # a generation was started
        known: Regroup | None = None
        until_s = math.inf
        clock = self._stage.clock
        while self._goes_on(workers):
            self._stage.signals.check()
            self._stage.check()
            regroup = self._stage.coordinator.regroup()
            if regroup is not None and (known is None or (known.planned and not regroup.planned)):
                # A planned end may become an unplanned one: whoever waits for a lost peer waits in vain.
                until_s = min(until_s, clock.monotonic_s() + self._end_within_s(regroup))
                self._ending(regroup)
                known = regroup
            if known is None or known.planned:
                found = self._stage.stall.look(workers.pids)
                if found.give_up:
                    self._give_up(found.give_up)
                    break
                for pid in found.stopped:
                    logger.warning("the worker with pid %d was stopped by somebody: it is killed", pid)
                    kill_stopped(pid)
                for pid in found.hung:
                    kill_stopped(pid)  # with all it forked: one that hangs hears no word
                self._hung |= found.hung
            else:
                found = Finding(until_s=math.inf)
            now_s = clock.monotonic_s()
            if now_s >= until_s:
                break
            left_s = max(0.0, min(until_s, found.until_s) - now_s)
            workers.wait(limit_s=None if math.isinf(left_s) else left_s)
        regroup = self._stage.coordinator.regroup()
        if known is None and regroup is not None and regroup.ends:
            self._ending(regroup)  # the workers of others were told a moment earlier, and ours went along
        return self._settle(workers)

    def _goes_on(self, workers: WorkerProcesses) -> bool:
        """Whether some worker is still in the generation, and none has found it broken."""
        return not self._broke(workers) and not set(workers.pids) <= set(self._stage.staying)

    def _broke(self, workers: WorkerProcesses) -> list[int]:
        """The places whose workers ended in a failure, or stay and say that a peer was lost."""
        staying = self._stage.staying
        lost = [rank for rank, process in workers.left.items() if process.pid in staying and staying[process.pid].lost]
        return lost + [rank for rank, end in workers.ended.items() if end.exit_code != 0]

    def _ending(self, regroup: Regroup) -> None:
        self._stage.observer.fault(regroup.cause)
        self._stage.observer.emit(RoundOpened(cause=regroup.cause, reason=regroup.reason))
        logger.info("regroup: %s", regroup.reason)
        gently = Control.LEAVE if regroup.ends else Control.REGROUP
        self._stage.server.ask_all(gently if regroup.planned else Control.OVER)

    def _give_up(self, reason: str) -> None:
        """Whether this node's generation still is the present one cannot be known: its workers must not go on."""
        self._stage.observer.fault(Cause.NODE_LOST)
        self._stage.observer.emit(Fencing(what="worker", reason=reason))
        logger.warning("the workers are stopped: %s", reason)

    def _end_within_s(self, regroup: Regroup) -> float:
        return PLANNED_S if regroup.planned else self._settle_within_s()

    def _settle_within_s(self) -> float:
        if self._stage.stall.blames:
            return VAIN_S
        pace = self._stage.observer.pace
        return min(MOST_SETTLE_S, max(SETTLE_S, SETTLE_STEPS * pace.mean_step_s if pace.known else 0.0))

    def _settle(self, workers: WorkerProcesses) -> Verdict:
        # The fault counts from here, before waiting for those that must still end.
        if not set(workers.pids) <= set(self._stage.staying):
            self._stage.server.ask_all(Control.OVER)
        if broke := self._broke(workers):
            self._stage.observer.fault(fault_of([self._exit_of(local_rank) for local_rank in broke]))
        workers.let_end(limit_s=self._settle_within_s(), staying=lambda: self._stage.staying)
        exits = [self._exit_of(local_rank) for local_rank in range(self._worker_group.spec.local_world_size)]
        verdict = judge(
            exits,
            step=self._stage.observer.step,
            committed_steps=self._stage.observer.committed_steps,
            killed=frozenset(workers.killed),
        )
        for end in exits:
            ended_here = end.meant not in (ExitCode.DONE, ExitCode.REGROUP) and not end.stays
            if ended_here and end.pid not in workers.killed:
                lost = WorkerLost(worker_rank=end.rank, pid=end.pid, cause=cause_of(end), reason=describe(end))
                self._stage.observer.emit(lost)
        self._starter.kept = workers.left
        workers.close()
        self._workers = None
        for local_rank in self._starter.kept:
            self._pcontext.subprocess_handlers.pop(local_rank)  # type: ignore[union-attr]  # or torch would end it
        self._shutdown()  # torch's part: log files and tails
        self._pcontext = None
        return verdict

    def _exit_of(self, local_rank: int) -> WorkerExit:
        assert self._workers is not None  # called while settling
        rank = self._worker_group.workers[local_rank].global_rank
        end = self._workers.ended.get(local_rank)
        if end is None:
            pid = self._workers.left[local_rank].pid
            return staying_as(self._stage.staying[pid], rank=rank, pid=pid, order=len(self._workers.ended))
        told = self._stage.told(end.pid)
        hung = self._hung.get(end.pid, "") if end.exit_code < 0 else ""
        return WorkerExit(rank=rank, pid=end.pid, exit_code=end.exit_code, order=end.order, told=told, hung=hung)

    def _leave(self, why: str) -> NoReturn:
        """A planned leave: finish the step, save, go; a second signal ends it at once."""
        logger.info("received %s: finishing the step and leaving", why)
        self._stage.signals.defer()
        if why.startswith("SIG"):  # who asked otherwise has been told of
            self._stage.observer.emit(LeaveAsked(source="signal", reason=why))
        self._stage.leave()
        until_s = self._stage.clock.monotonic_s() + self._grace_s
        if self._workers is not None:
            self._stage.server.ask_all(Control.LEAVE)
            let_end(self._stage, self._workers, until_s=until_s, staying=lambda: self._stage.staying)
            ended = [self._exit_of(local_rank).meant for local_rank in self._workers.ended]
            if not self._workers.left and all(meant == ExitCode.DONE for meant in ended):
                self._end(Outcome.SUCCEEDED, ExitCode.DONE, "the run finished while leaving")
            if self._workers.left:
                keep(self._stage, self._workers, until_s=until_s)
        elif self._starter.kept:
            waiting = WorkerProcesses(self._starter.kept, wake=self._stage.wake, clock=self._stage.clock)
            keep(self._stage, waiting, until_s=until_s)
            self._starter.kept = waiting.left
            waiting.close()
        raise Preempted(f"left on {why}; please requeue")

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
            self._stage.settle_output()
            last_word(text)
        raise SystemExit(int(exit_code))


def _none(*_: object) -> None:
    """Nothing forks workers here: each is a new Python."""


def last_word(text: str) -> None:
    """The last thing on the screen is what a person needs first."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201
