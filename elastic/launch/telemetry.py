"""Telemetry: an agent's metrics, the exporter that serves them, and the files that let a later agent go on counting."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from elastic.clock import Clock
from elastic.config.model import MetricsSettings
from elastic.events import EventFile
from elastic.launch.observer import Observer
from elastic.metrics.access import Access
from elastic.metrics.exporter import Exporter
from elastic.metrics.fold import Metrics
from elastic.metrics.totals import Totals

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Who:
    """The agent whose metrics these are. `leads` and `seated` say whether it does and is, just now.

    One that leads a world without having a seat in it sees nothing of the job, and so shows nothing of it.
    """

    node: str
    agent: str
    leads: Callable[[], bool]
    seated: Callable[[], bool]
    clock: Clock


class Telemetry:
    """One for each agent. `start` before anything is emitted."""

    def __init__(self, settings: MetricsSettings, *, who: Who, events: Path) -> None:
        """`events`: the run's directory of events on this machine."""
        self._settings, self._who = settings, who
        self.metrics = Metrics(clock=who.clock, is_leader=self._shows_the_job)
        self.totals = Totals(
            events / "totals",
            node=who.node,
            agent=who.agent,
            metrics=self.metrics,
            is_leader=self._shows_the_job,
        )

    def _shows_the_job(self) -> bool:
        return self._who.leads() and self._who.seated()

    def observer(self, file: EventFile) -> Observer:
        """What hears the agent's events, for this file and these metrics."""
        who = self._who
        return Observer(
            node=who.node,
            file=file,
            metrics=self.metrics,
            clock=who.clock,
            is_leader=who.leads,
            noted=self.totals.note,
        )

    def start(self, stack: ExitStack) -> str:
        """Go on counting, and serve it; the exporter's address, "" without one. `stack` ends it.

        Raises:
            UsageError: the exporter's address or files cannot be used.
        """
        self.totals.start()
        stack.callback(self.totals.stop)
        wanted = self._settings
        if not wanted.enabled:
            return ""
        access = Access(
            cert_file=wanted.tls_cert,
            key_file=wanted.tls_key,
            client_ca_file=wanted.client_ca,
            users_file=wanted.users_file,
        )
        exporter = Exporter(self.metrics, host=wanted.host, port=wanted.port, access=access)
        address = exporter.start()
        stack.callback(exporter.stop)
        logger.info("metrics at %s/metrics", address if access.secure else f"http://{address}")
        return address
