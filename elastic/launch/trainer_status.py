"""Trainer status: tells Kubeflow Trainer's server how far the run is, where Trainer has said in variables how to.

Protocol: KEP-2779 of kubeflow/trainer (feature gate TrainJobStatus): POST of a trainerStatus as JSON, with a token that
is read anew each time since it is replaced. The leader tells; what cannot be told now is told a moment later, anew.
"""

from __future__ import annotations

import datetime
import json
import logging
import ssl
import threading
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.error import URLError

from elastic.clock import Clock

logger = logging.getLogger(__name__)

URL, CA_CERT, TOKEN = (f"KUBEFLOW_TRAINER_SERVER_{name}" for name in ("URL", "CA_CERT", "TOKEN"))
PAUSE_S = 5.0
"""From one message to the next: the server takes no more."""
LIMIT_S = 5.0
STOP_S = 2 * LIMIT_S
"""How long the end of an agent waits for its last message: a server may answer byte by byte."""
_SHOWN = {"elastic_step": "step", "elastic_loss": "loss", "elastic_world_size": "world_size"}
_CONSUMED = "elastic_consumed_samples"


@dataclass(frozen=True, kw_only=True)
class Server:
    """Where to tell it, and the files that prove who tells."""

    url: str
    ca_file: str
    token_file: str

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Server | None:
        """From Trainer's variables; None where it has set none."""
        if not environ.get(URL):
            return None
        return cls(url=environ[URL], ca_file=environ.get(CA_CERT, ""), token_file=environ.get(TOKEN, ""))


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The run at one moment: values of metrics by name."""

    at_s: float
    values: Mapping[str, float]

    @property
    def consumed(self) -> float:
        """The position [samples]."""
        return self.values.get(_CONSUMED, 0.0)


def message(first: Reading, now: Reading, *, goal_samples: int, wall_s: float) -> dict[str, Any]:
    """The body to post. Pure. The share is that of the goal, 100 only when it is reached."""
    status: dict[str, Any] = {
        "lastUpdatedTime": datetime.datetime.fromtimestamp(int(wall_s), tz=datetime.UTC).isoformat(),
        "metrics": [{"name": _SHOWN[name], "value": f"{now.values[name]:g}"} for name in _SHOWN if name in now.values],
    }
    if _CONSUMED in now.values:
        status["progressPercentage"] = min(100, int(100 * now.consumed / goal_samples))
        done, took_s = now.consumed - first.consumed, now.at_s - first.at_s
        if done > 0 and took_s > 0:
            left = max(0.0, goal_samples - now.consumed)
            status["estimatedRemainingSeconds"] = round(left * took_s / done)
    return {"trainerStatus": status}


class Source(Protocol):
    """What has values, as the metrics do."""

    def collect(self) -> Any:
        """Families of samples."""
        ...


def readings(source: Source) -> dict[str, float]:
    """The values that are told, of those that are there."""
    wanted = {*_SHOWN, _CONSUMED}
    return {
        sample.name: sample.value for family in source.collect() for sample in family.samples if sample.name in wanted
    }


def post(server: Server, body: Mapping[str, Any]) -> None:
    """Tell it. Raises OSError, URLError among it."""
    token = Path(server.token_file).read_text().strip() if server.token_file else ""
    request = urllib.request.Request(
        server.url,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {token}"},
        method="POST",
    )
    context = ssl.create_default_context(cafile=server.ca_file or None) if server.url.startswith("https") else None
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    with urllib.request.build_opener(*handlers).open(request, timeout=LIMIT_S):
        return


class TrainerStatus:
    """A thread that tells while this agent leads, and once more at the end."""

    def __init__(
        self,
        server: Server,
        *,
        read: Callable[[], Mapping[str, float]],
        leads: Callable[[], bool],
        goal_samples: int,
        clock: Clock,
        pause_s: float = PAUSE_S,
    ) -> None:
        self._server, self._read, self._leads = server, read, leads
        self._goal_samples, self._clock, self._pause_s = goal_samples, clock, pause_s
        self._first: Reading | None = None
        self._silent = False
        self._led = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="elastic-trainer-status", daemon=True)

    def start(self) -> None:
        """Begin to tell."""
        self._thread.start()

    def stop(self) -> None:
        """Tell the end of it, and no more. Who does not take it is not waited for."""
        self._stopping.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        while not self._stopping.wait(self._pause_s):
            self._led = self._leads()
            if self._led:
                self._tell()
        if self._led:
            self._tell()

    def _tell(self) -> None:
        now = Reading(at_s=self._clock.monotonic_s(), values=self._read())
        if self._first is None and _CONSUMED in now.values:
            self._first = now
        body = message(self._first or now, now, goal_samples=self._goal_samples, wall_s=self._clock.wall_s())
        try:
            post(self._server, body)
            self._silent = False
        except (OSError, URLError, ValueError) as error:
            if not self._silent:
                logger.warning("Kubeflow Trainer was not told how far the run is, and will be later: %s", error)
            self._silent = True


def tell_trainer(
    environ: Mapping[str, str],
    *,
    source: Source,
    leads: Callable[[], bool],
    goal_samples: int,
    clock: Clock,
    stack: ExitStack,
) -> None:
    """Tell Kubeflow Trainer for as long as `stack` is open, where it wants to know."""
    server = Server.of(environ)
    if server is None:
        return
    status = TrainerStatus(server, read=lambda: readings(source), leads=leads, goal_samples=goal_samples, clock=clock)
    status.start()
    stack.callback(status.stop)
