"""What one agent works with: coordinator, line to the workers, events, metrics, exporter. Built once, stopped once."""

from __future__ import annotations

import dataclasses
import logging
import os
import secrets
import sys
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import torch
from torch.distributed.elastic.rendezvous.api import RendezvousParameters

from elastic import __version__
from elastic.checkpoint.locating import local_dir, storage_for
from elastic.checkpoint.room import anonymous_arena
from elastic.checkpoint.survey import highest_generation
from elastic.clock import Clock
from elastic.config.model import Settings
from elastic.events import AgentStarted, EventFile, WorldFormed
from elastic.launch.asked import Asked
from elastic.launch.hang import Bounds
from elastic.launch.hang_watch import HangWatch
from elastic.launch.interface import interface_of
from elastic.launch.journal import open_journal
from elastic.launch.leaving import Wishes, listen
from elastic.launch.likeness import likeness_of
from elastic.launch.output import Output
from elastic.launch.processes import WakePipe
from elastic.launch.ready import ReadyWorkers
from elastic.launch.server import Callbacks, WorkerServer
from elastic.launch.signals import LeaveSignals
from elastic.launch.stall_watch import StallWatch
from elastic.launch.telemetry import Telemetry, Who
from elastic.launch.tenure import Launch
from elastic.launch.torch_details import take_signals
from elastic.launch.trainer_status import tell_trainer
from elastic.launch.variables import Exported, threads_for
from elastic.launch.words import Words
from elastic.lease import LeasePage
from elastic.lifetime import AGENT_PID
from elastic.link import Failure, Stays
from elastic.rendezvous.assemble import assemble
from elastic.rendezvous.budget import left
from elastic.rendezvous.membership import Membership
from elastic.rendezvous.model import FailureReport, Phase
from elastic.rendezvous.model import World as Agreed
from elastic.rendezvous.speech import SPEAKS, spoken
from elastic.world import AGENT_SECRET, AGENT_SOCKET, ARENAS, ARENAS_EACH, EVENTS_PATH, JOB_ID, LEASE_PAGE, NODE, WATCH

logger = logging.getLogger(__name__)

GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
HEAR_OUT_S = 2.0
"""How long to wait for the last words of workers that have ended; they are there already, and are only to be read."""


class Stage:
    """The agent's surroundings. `start` before its first rendezvous, `stop` after its last worker."""

    def __init__(
        self,
        parameters: RendezvousParameters,
        *,
        settings: Settings,
        launch: Launch,
        node: str,
        environ: Mapping[str, str],
        clock: Clock,
    ) -> None:
        """Put the parts together; nothing is started and nothing is connected to yet.

        Raises:
            ConfigError: rendezvous options that cannot be understood.
            StoreUnavailable: there is no way to etcd.
        """
        self.clock, self._settings, self._node, self._launch = clock, settings, node, launch
        self.wake = WakePipe()
        self.ready: ReadyWorkers | None = None
        """What forks the workers; None where each is a new Python."""
        self.build_ahead_s = 0.0
        """How long workers may build before there is a place for them; 0: they do not."""
        self.signals = LeaveSignals(on_signal=self.wake.wake)
        self._agent = uuid.uuid4().hex
        self._words = Words(wake=self.wake.wake)
        self._previous: Agreed | None = None
        self._member, self._exported = False, Exported(os.environ)
        self._output: Output | None = None
        self._stack = ExitStack()
        save_root, name = settings.checkpoint.save_path, f"{node}-{self._agent[:8]}.jsonl"
        self._events_path = Path(local_dir(save_root)).absolute() / "events" / name
        self._telemetry = Telemetry(settings.metrics, who=self._who(), events=self._events_path.parent)
        self.observer = self._telemetry.observer(EventFile(self._events_path))
        self._wishes = Wishes(emit=self.observer.emit, leave=self.signals.ask)
        self._page = LeasePage.create()
        self._stack.callback(self._page.remove)
        self.handler = assemble(
            parameters,
            environ=environ,
            settings=settings,
            job_id=launch.job_id,
            launch=launch.name,
            node=node,
            named=NODE in environ,
            agent=self._agent,
            numerics=likeness_of(settings.training, environ=environ),
            root_generation=highest_generation(save_root, storage=storage_for(save_root)),
            clock=clock,
            on_change=self.wake.wake,
            emit=self.observer.emit,
            page=self._page,
            on_drain=self._wishes.drained,
            on_request=self._telemetry.metrics.store_request,
        )
        self.coordinator = self.handler.coordinator
        self._tenure = launch.tenure(
            coordinator=self.coordinator, emit=self.observer.emit, wake=self.wake.wake, clock=clock
        )
        self.stall = self._stall_watch()

    def _announce(self, exporter: str) -> None:
        """Tell that this agent is there, and keep telling a trainer of trainers how far the run is where one asks."""
        training, told, leads = self._settings.training, self._telemetry.metrics, lambda: self.coordinator.is_leader
        goal = training.steps * training.global_batch_size
        tell_trainer(os.environ, source=told, leads=leads, goal_samples=goal, clock=self.clock, stack=self._stack)
        self.observer.emit(
            AgentStarted(
                job_id=self.handler.get_run_id(),
                agent=self._agent,
                endpoint=self.handler.endpoint,
                exporter=exporter,
                version=__version__,
                torch_version=str(torch.__version__),
                most_nodes=self.coordinator.options.max_nodes,
            )
        )

    def _stall_watch(self) -> StallWatch:
        return StallWatch(
            self.coordinator,
            pace=lambda: self.observer.pace,
            unconfirmed_limit_s=self._settings.rendezvous.unconfirmed_limit_s,
            clock=self.clock,
        )

    def _who(self) -> Who:
        return Who(
            node=self._node,
            agent=self._agent,
            leads=lambda: self.coordinator.is_leader,
            seated=lambda: self.coordinator.seated,
            clock=self.clock,
        )

    def start(self, *, slots: int) -> None:
        """Start threads and servers, and handle signals from here on (torchrun does so only once workers run).

        Raises:
            StoreError: etcd is not there, or refuses us.
            UsageError: the exporter's address cannot be used.
        """
        take_signals(self.signals.handle)
        # A handler that raises while a thread is being started leaves that thread broken.
        self.signals.defer()
        # SIGUSR1 too, with which batch systems announce the end: unhandled it would kill the agent on the spot.
        asked = os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT")
        self.signals.install(f"{asked},SIGUSR1")
        self._stack.callback(self.wake.close)
        self._stack.callback(self.observer.close)
        self._stack.callback(self._exported.restore)
        self._output = self._open_output(slots)
        exporter = self._telemetry.start(self._stack)
        self._announce(exporter)
        self.server = WorkerServer(
            Callbacks(
                event=self.observer.worker_said,
                failure=self._words.fails,
                ask=Asked(self.coordinator, tenure=self._tenure, clock=self.clock).answer,
                stays=self._words.stays,
            ),
            secret=secrets.token_hex(),
        )
        self._stack.callback(self.server.stop)
        self.export(
            {
                NODE: self._node,
                JOB_ID: self.handler.get_run_id(),
                AGENT_SOCKET: self.server.path,
                AGENT_SECRET: self.server.secret,
                EVENTS_PATH: str(self._events_path),
                AGENT_PID: str(os.getpid()),
                SPEAKS: spoken(torch.__version__),
                LEASE_PAGE: str(self._page.path),
                ARENAS: ",".join(self._make_arenas(slots)),
                WATCH: self._watch_hangs(slots),
                **self._interface(),
                **threads_for(self._settings.training.threads_per_worker, environ=os.environ),
            }
        )
        self._stack.callback(self.coordinator.stop)
        self.signals.check()
        self.coordinator.start(slots=slots, exporter=exporter, ask=self.ready is None and not self._launch.doubtful)
        self._member = True
        self._launch.await_silence(coordinator=self.coordinator, check=self.signals.check, clock=self.clock)
        if self._tenure is not None:
            self._tenure.start(self._stack)
        self._telemetry.metrics.watch_lease(lambda: self.coordinator.lease_valid_until_s)
        listen(self._wishes, settings=self._settings, drain=self.handler.drain, stack=self._stack)
        self.signals.check()

    def use(self, ready: ReadyWorkers, *, ours: bool) -> None:
        """Have workers forked by it, and stop it with the rest. `ours`: their program is the one that runs a Job."""
        if ours and self._settings.launch.rejoin:
            self.build_ahead_s = self._settings.launch.build_ahead_s
        ready.attach(emit=self.observer.emit, wake=self.wake, interrupted=lambda: bool(self.signals.received))
        self._stack.callback(ready.stop)
        self.ready = ready

    def stop(self) -> None:
        """Leave nothing behind: no thread, no socket, no key."""
        self.signals.defer()  # one that comes now must not keep the rest of this from being done
        self._stack.close()

    def export(self, variables: Mapping[str, str]) -> None:
        """Set variables for the workers, until `stop`. They inherit the agent's; torchelastic offers no other way."""
        self._exported.set(variables)

    def leave(self) -> None:
        """Tell the others that this node is going, if they know it at all."""
        if self._member:
            self.coordinator.leave()

    def join(self, report: FailureReport | None) -> Membership:
        """Take part in the next generation. Raises JobClosed, Preempted, StoreError."""
        if self._previous is None:
            self._get_ready()
        membership = self.coordinator.join(report, interrupted=lambda: bool(self.signals.received))
        world = dataclasses.replace(membership.world, seats=self.coordinator.known_seats(membership.world))
        membership = dataclasses.replace(membership, world=world)
        self.observer.new_generation(world, previous=self._previous)
        self._previous = world
        self._telemetry.totals.new_generation()
        limits = self.coordinator.options
        budget, step = left(
            world.failures, no_progress_limit=limits.no_progress_limit, bucket_limit=limits.bucket_limit
        )
        self.observer.emit(
            WorldFormed(
                world_size=world.world_size,
                nodes=tuple(seat.node for seat in world.seats),
                node_count=world.nodes,
                node_rank=membership.seat.group_rank,
                cause=world.cause,
                reason=world.reason,
                seconds=membership.seconds,
                leader=self.coordinator.is_leader,
                most_nodes=world.most_nodes,
                budget=budget,
                budget_step=step,
            )
        )
        logger.info(
            "generation %d: world %d on %s (%s)",
            world.generation,
            world.world_size,
            ", ".join(seat.node for seat in world.seats) if world.apart is None else f"{world.nodes} nodes",
            world.reason,
        )
        return membership

    def check(self) -> None:
        """Raises Fenced or RunMismatch where somebody else has this node's name or the save path by now."""
        self.coordinator.check()
        if self._tenure is not None:
            self._tenure.check()

    def _get_ready(self) -> None:
        """Who comes to a world at work interrupts it only once its own workers can start at once."""
        world = self.coordinator.world()
        if self.ready is not None and world is not None and world.phase is Phase.FORMED:
            self.ready.wait()

    def begin_generation(self, generation: int) -> None:
        """What workers said of the last one is of no interest any more, nor what was asked of them."""
        self._words.forget(generation=generation)
        self.server.begin_generation()

    @property
    def staying(self) -> dict[int, Stays]:
        """By pid: what the workers said that wait for the next generation."""
        return self._words.staying

    def told(self, pid: int) -> Failure | None:
        """What the worker with this pid, which has ended, said about its end."""
        self.server.hear_out(limit_s=HEAR_OUT_S)
        return self._words.last(pid)

    def lend(self, local_rank: int) -> tuple[int, int] | None:
        """What a new worker prints to; None: to where this agent does."""
        return None if self._output is None else self._output.lend(local_rank)

    def name_workers(self, ranks: Mapping[int, int], generation: int) -> None:
        """Who this node's workers are from now on, by their local ranks."""
        if self._output is not None:
            self._output.name(ranks, generation=generation)

    def settle_output(self) -> None:
        """What workers have printed is on the screen when this returns."""
        if self._output is not None:
            self._output.settle()

    def _open_output(self, slots: int) -> Output | None:
        if not self._settings.launch.collect_output:
            return None
        journal = open_journal(
            self._settings.launch, self._events_path.parent.with_name("logs"), node=self._node, stack=self._stack
        )
        screens = {"out": sys.stdout, "err": sys.stderr}
        output = Output(node=self._node, workers=slots, journal=journal, clock=self.clock, **screens)
        self._stack.callback(output.stop)
        return output

    def _make_arenas(self, slots: int) -> list[str]:
        """Memory for the workers' snapshots: it outlives them, and is gone with this process."""
        made = [anonymous_arena("elastic-arena") for _ in range(ARENAS_EACH * slots)]
        for fd, _ in made:
            self._stack.callback(os.close, fd)
        return [path for _, path in made]

    def _watch_hangs(self, slots: int) -> str:
        node = self._settings.node
        bounds = Bounds(least_s=node.hang_least_s, unknown_s=node.hang_unknown_s)
        self.stall.hangs = HangWatch(
            slots=slots,
            bounds=bounds,
            file=self._events_path,
            emit=self.observer.emit,
            clock=self.clock,
            stack=self._stack,
        )
        return self.stall.hangs.paths

    def _interface(self) -> dict[str, str]:
        """Where the workers' gloo shall bind, unless somebody said so already."""
        name = interface_of(self.coordinator.identity.address)
        return {} if name is None or os.environ.get(GLOO_INTERFACE) else {GLOO_INTERFACE: name}
