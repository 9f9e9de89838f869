"""What one agent works with: coordinator, line to the workers, events, metrics, exporter. Built once, stopped once."""

from __future__ import annotations

import logging
import os
import platform
import signal
import threading
import uuid
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch
from torch.distributed.elastic.multiprocessing import SignalException

from elastic import __version__
from elastic.checkpoint.survey import newest_generation
from elastic.clock import Clock
from elastic.config.model import Settings
from elastic.events import AgentStarted, EventFile, WorldFormed
from elastic.launch.observer import Observer
from elastic.launch.processes import WakePipe
from elastic.launch.server import Callbacks, WorkerServer
from elastic.lifetime import AGENT_PID
from elastic.link import Answer, Failure
from elastic.metrics.exporter import Exporter
from elastic.metrics.fold import Metrics
from elastic.rendezvous.coordinator import Coordinator
from elastic.rendezvous.etcd import EtcdStore
from elastic.rendezvous.handler import ListeningStore
from elastic.rendezvous.membership import AgentIdentity, Membership
from elastic.rendezvous.model import FailureReport
from elastic.rendezvous.model import World as Agreed
from elastic.rendezvous.options import RendezvousOptions
from elastic.world import AGENT_SOCKET, EVENTS_PATH, JOB_ID, NODE

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class StageParts:
    """What `entry` has worked out before there is an agent."""

    settings: Settings
    options: RendezvousOptions
    address: str
    """Where other nodes reach this one."""
    node: str
    clock: Clock


class Stage:
    """The agent's surroundings: made before its first rendezvous, stopped after its last worker."""

    def __init__(self, parts: StageParts, *, slots: int) -> None:
        """Start threads and servers, and handle signals from here on (torchrun does so only once workers run).

        Raises:
            StoreError: etcd is not there, or refuses us.
            UsageError: the exporter's address cannot be used.
        """
        self._parts = parts
        self._agent = uuid.uuid4().hex
        self._told: dict[int, Failure] = {}
        self._lock = threading.Lock()
        self._previous: Agreed | None = None
        self._signalled = False
        self.clock = parts.clock
        self._handle_signals()
        with ExitStack() as stack:
            self._start(stack, slots=slots)
            self._stack = stack.pop_all()

    def stop(self) -> None:
        """Leave nothing behind: no thread, no socket, no key."""
        self._stack.close()

    def _start(self, stack: ExitStack, *, slots: int) -> None:
        parts = self._parts
        self.wake = WakePipe()
        stack.callback(self.wake.close)
        metrics = Metrics(clock=self.clock)
        save_path = Path(parts.settings.checkpoint.save_path).absolute()
        path = save_path / "events" / f"{parts.node}-{self._agent[:8]}.jsonl"
        file = EventFile(path)
        stack.callback(file.close)
        self.observer = Observer(
            node=parts.node, file=file, metrics=metrics, clock=self.clock, is_leader=lambda: self.coordinator.is_leader
        )
        exporter = self._start_exporter(metrics, stack)
        store = EtcdStore(parts.options, clock=self.clock)
        stack.callback(store.close)
        self.coordinator = self._coordinate(store, slots=slots, exporter=exporter)
        self.observer.emit(
            AgentStarted(
                job_id=parts.options.job_id,
                agent=self._agent,
                endpoint=",".join(parts.options.endpoints),
                exporter=exporter,
                version=__version__,
                torch_version=str(torch.__version__),
            )
        )
        self.server = WorkerServer(
            Callbacks(event=self.observer.worker_said, failure=self._worker_failed, ask=self._answer)
        )
        stack.callback(self.server.stop)
        self._export_environ(path)
        self.coordinator.start()
        stack.callback(self.coordinator.stop)

    def join(self, report: FailureReport | None) -> Membership:
        """Take part in the next generation. Raises JobClosed, Preempted, StoreError."""
        membership = self.coordinator.join(
            report, timeout_s=self._parts.settings.rendezvous.join_timeout_s, interrupted=lambda: self._signalled
        )
        with self._lock:
            self._told.clear()
        world = membership.world
        self.observer.new_generation(world, previous=self._previous)
        self._previous = world
        self.observer.emit(
            WorldFormed(
                world_size=world.world_size,
                nodes=tuple(seat.node for seat in world.seats),
                cause=world.cause,
                reason=world.reason,
                seconds=membership.seconds,
                leader=self.coordinator.is_leader,
            )
        )
        logger.info(
            "generation %d: world %d on %s (%s)",
            world.generation,
            world.world_size,
            ", ".join(seat.node for seat in world.seats),
            world.reason,
        )
        return membership

    def told(self, pid: int) -> Failure | None:
        """What the worker with this pid said about its end."""
        with self._lock:
            return self._told.get(pid)

    def _worker_failed(self, pid: int, failure: Failure) -> None:
        with self._lock:
            self._told[pid] = failure

    def _answer(self, what: str, value: str | None) -> Answer:
        if what == "record":
            return Answer(granted=True, reason="", value=self.coordinator.commit_record())
        if what == "commit" and value is not None:
            verdict = self.coordinator.commit(value)
            return Answer(granted=verdict.granted, reason=verdict.reason)
        return Answer(granted=False, reason=f"the agent does not know the request {what!r}; versions differ")

    def _coordinate(self, store: EtcdStore, *, slots: int, exporter: str) -> Coordinator:
        parts = self._parts
        identity = AgentIdentity(
            agent=self._agent,
            node=parts.node,
            address=parts.address,
            slots=slots,
            exporter=exporter,
            fingerprint=f"elastic {__version__}, torch {torch.__version__}, python {platform.python_version()}",
            root_generation=newest_generation(parts.settings.checkpoint.save_path),
        )
        return Coordinator(
            store,
            options=parts.options,
            identity=identity,
            host_store=ListeningStore,
            clock=self.clock,
            on_change=self.wake.wake,
            emit=self.observer.emit,
        )

    def _start_exporter(self, metrics: Metrics, stack: ExitStack) -> str:
        wanted = self._parts.settings.metrics
        if not wanted.enabled:
            return ""
        exporter = Exporter(metrics, host=wanted.host, port=wanted.port)
        address = exporter.start()
        stack.callback(exporter.stop)
        logger.info("metrics at http://%s/metrics", address)
        return address

    def _export_environ(self, events: Path) -> None:
        # The environment of the agent is what its workers inherit; torchelastic offers no other way.
        os.environ.update(
            {
                NODE: self._parts.node,
                JOB_ID: self._parts.options.job_id,
                AGENT_SOCKET: self.server.path,
                EVENTS_PATH: str(events),
                AGENT_PID: str(os.getpid()),
            }
        )

    def _handle_signals(self) -> None:
        for name in os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT").split(","):
            signal.signal(getattr(signal, name.strip()), self._signal)

    def _signal(self, number: int, frame: FrameType | None) -> None:
        self._signalled = True
        raise SignalException(f"process {os.getpid()} got signal {number}", sigval=signal.Signals(number))
