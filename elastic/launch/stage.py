"""What one agent works with: coordinator, line to the workers, events, metrics, exporter. Built once, stopped once."""

from __future__ import annotations

import logging
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from torch.distributed.elastic.multiprocessing import SignalException

from elastic import __version__
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
from elastic.rendezvous.coordinator import Coordinator, Membership
from elastic.rendezvous.model import FailureReport
from elastic.rendezvous.model import World as Agreed
from elastic.world import AGENT_SOCKET, EVENTS_PATH, JOB_ID, NODE

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class StageParts:
    """What `entry` has worked out before there is an agent."""

    settings: Settings
    coordinator: Coordinator
    wake: WakePipe
    clock: Clock
    job_id: str
    node: str
    agent: str
    endpoint: str


class Stage:
    """The agent's surroundings. `start` before the first rendezvous, `stop` after the last worker."""

    def __init__(self, parts: StageParts) -> None:
        self._parts = parts
        self.coordinator = parts.coordinator
        self.wake = parts.wake
        self.clock = parts.clock
        self._told: dict[int, Failure] = {}
        self._lock = threading.Lock()
        self._previous: Agreed | None = None
        self._signalled = False

    def start(self, *, slots: int) -> None:
        """Start threads and servers, and handle signals from here on (torchrun does so only once workers run)."""
        parts = self._parts
        self._handle_signals()
        metrics = Metrics(clock=self.clock)
        events = Path(parts.settings.checkpoint.save_path) / "events" / f"{parts.node}-{parts.agent[:8]}.jsonl"
        self._events = EventFile(events)
        self.observer = Observer(
            node=parts.node,
            file=self._events,
            metrics=metrics,
            clock=self.clock,
            is_leader=lambda: self.coordinator.is_leader,
        )
        self.server = WorkerServer(
            Callbacks(event=self.observer.worker_said, failure=self._worker_failed, ask=self._answer)
        )
        exporter = self._start_exporter(metrics)
        self._export_environ(events)
        import torch

        self.observer.emit(
            AgentStarted(
                job_id=parts.job_id,
                agent=parts.agent,
                endpoint=parts.endpoint,
                exporter=exporter,
                version=__version__,
                torch_version=str(torch.__version__),
            )
        )
        self.coordinator.start(slots=slots, exporter=exporter)

    def stop(self) -> None:
        """Leave nothing behind: no thread, no socket, no key."""
        self.coordinator.stop()
        self.server.stop()
        if self._exporter is not None:
            self._exporter.stop()
        self._events.close()

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

    def _start_exporter(self, metrics: Metrics) -> str:
        wanted = self._parts.settings.metrics
        self._exporter = Exporter(metrics, host=wanted.host, port=wanted.port) if wanted.enabled else None
        if self._exporter is None:
            return ""
        address = self._exporter.start()
        logger.info("metrics at http://%s/metrics", address)
        return address

    def _export_environ(self, events: Path) -> None:
        # The environment of the agent is what its workers inherit; torchelastic offers no other way.
        os.environ.update(
            {
                NODE: self._parts.node,
                JOB_ID: self._parts.job_id,
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
