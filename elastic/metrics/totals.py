"""Totals: counters that outlive their agent, in small files beside the run's events, each replaced whole.

One for each node, written by its agent, and one for the job, written by the leader. Who comes later goes on from there.
What happened in the last moments before an agent was killed may be missing from its node's file.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from elastic.metrics.fold import Metrics

logger = logging.getLogger(__name__)

PERIOD_S = 5.0
STOP_S = 5.0
"""How long the end of an agent waits for its last counters to be written."""
_MOST_BYTES = 1 << 20


class Totals:
    """`start`, then `note` what should not wait, then `stop`. Its thread writes; a slow disk holds nobody else up."""

    def __init__(
        self,
        directory: Path,
        *,
        node: str,
        agent: str,
        metrics: Metrics,
        is_leader: Callable[[], bool],
        period_s: float = PERIOD_S,
    ) -> None:
        self._own, self._job = directory / f"node-{node}.json", directory / "job.json"
        self._agent, self._metrics, self._is_leader = agent, metrics, is_leader
        self._period_s = period_s
        self._known = threading.Event()
        """Clear while the leader's book may know more of the job than this agent has seen."""
        self._wake = threading.Condition()
        self._noted = self._stopping = self._failed = False
        self._thread = threading.Thread(target=self._run, name="elastic-totals", daemon=True)

    def start(self) -> None:
        """Go on from what earlier agents left, and begin to write."""
        self.take_up()
        self._thread.start()

    def stop(self) -> None:
        """Write a last time. A disk that does not answer is not waited for: what it holds then is a little older."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join(STOP_S)
        if self._thread.is_alive():
            logger.warning("the last counters of this node are not kept: %s does not take them", self._own)

    def note(self) -> None:
        """Something happened that should not be lost: write at once."""
        with self._wake:
            self._noted = True
            self._wake.notify()

    def new_generation(self) -> None:
        """The leader counted what this agent may not have seen. It is asked once, when it has had time to write."""
        self._known.clear()

    def take_up(self) -> None:
        """Read what earlier agents of this node, and the leader, left."""
        own = _read(self._own)
        if own is not None:
            self._try(lambda: self._metrics.adopt_node(own["values"]), self._own)
        self.write()
        self._take_job()

    def write(self) -> None:
        """Write this node's counters, and the job's if this agent leads."""
        try:
            self._own.parent.mkdir(parents=True, exist_ok=True)
            self._put(self._own, {"values": self._metrics.node_plain()})
            if self._is_leader():
                self._put(self._job, self._metrics.job_plain())
            self._failed = False
        except OSError as error:
            if not self._failed:
                logger.warning("counters of this node are not kept for a later agent: %s", error)
            self._failed = True

    def _put(self, path: Path, plain: dict[str, Any]) -> None:
        draft = path.with_name(f".{path.name}.{self._agent}")
        draft.write_text(json.dumps({"agent": self._agent, **plain}, separators=(",", ":")))
        draft.replace(path)

    def _take_job(self) -> None:
        """The job's counters from the leader's file. How old that is, the file system's own clock tells."""
        found = _read(self._job)
        if found is None or found.get("agent") == self._agent:
            return
        try:
            gap_s = os.stat(self._own).st_mtime - os.stat(self._job).st_mtime
        except OSError:
            return
        self._try(lambda: self._metrics.adopt_job(found, gap_s=max(0.0, gap_s)), self._job)

    def _try(self, adopt: Callable[[], None], path: Path) -> None:
        try:
            adopt()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            logger.warning("%s holds no counters of this version, which begin at zero: %r", path, error)

    def _run(self) -> None:
        while not self._stopping:
            with self._wake:
                self._wake.wait_for(lambda: self._noted or self._stopping, self._period_s)
                waited, self._noted = not self._noted, False
            self.write()
            if waited and not self._known.is_set() and not self._stopping and not self._is_leader():
                self._known.set()
                self._take_job()


def _read(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
