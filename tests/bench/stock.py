"""Stock torchrun with its `etcd` backend, measured: its own environment, an etcd with API v2, a plain DDP script."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from elastic.local.etcd import EtcdServer
from elastic.local.node import ROOT, children, descendants

LIMIT_S = 180.0
SILENT_S = 60.0
"""How long its survivors are given after a node froze: they would wait for gloo's time limit, half an hour."""


@dataclass(frozen=True, kw_only=True)
class StockResult:
    """Seconds; None where it did not happen within the limit."""

    start_s: float | None
    worker_kill_s: float | None
    node_kill_s: float | None
    join_s: float | None
    froze: bool
    """Whether it trained when a node of its was frozen."""
    freeze_s: float | None
    etcd_down_ended: int | None
    """How many of its three agents end while etcd is down."""


def make_environment(directory: Path) -> Path:
    """An environment with torch and python-etcd and nothing of ours; kept between runs. Returns its torchrun."""
    torchrun = directory / "bin" / "torchrun"
    if not torchrun.exists():
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
        pip = [str(directory / "bin" / "pip"), "install", "--quiet", "-c", str(ROOT / "constraints.txt")]
        subprocess.run([*pip, "torch", "numpy", "python-etcd"], check=True)
    return torchrun


class StockRun:
    """Three stock nodes. Times are wall times of steps, read from the step log."""

    def __init__(self, torchrun: Path, directory: Path, endpoint: str, *options: str) -> None:
        self._torchrun, self._directory, self._endpoint, self._options = torchrun, directory, endpoint, options
        self._log = directory / "steps.jsonl"
        self._job = uuid.uuid4().hex[:8]
        self._agents: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        """One more node; returns its agent."""
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # it might find ours
        environ = {
            **inherited,
            "STEP_LOG": str(self._log),
            "CHECKPOINT": str(self._directory / "checkpoint.pt"),
            "STEPS": "1000000",
            "OMP_NUM_THREADS": "1",
        }
        command = [
            str(self._torchrun),
            *("--nnodes=1:4", "--nproc-per-node=1", "--rdzv-backend=etcd", f"--rdzv-endpoint={self._endpoint}"),
            *(f"--rdzv-id={self._job}", "--max-restarts=10", *self._options),
            str(ROOT / "tests" / "bench" / "stock_train.py"),
        ]
        with (self._directory / f"agent{len(self._agents)}.log").open("wb") as out:
            agent = subprocess.Popen(command, env=environ, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        self._agents.append(agent)
        return agent

    def measure(self, etcd: EtcdServer) -> StockResult:
        """Start three nodes, kill a worker, kill a node, let one join, freeze one for a while; then end its etcd."""
        began = time.time()
        for _ in range(3):
            self.start()
        started = self._first(lambda row: row["world"] == 3, since=began)
        self._settle()
        worker = self._fault(lambda: os.kill(self._worker(), 9))
        node = self._fault(self._kill_node)
        join = self._fault(self.start, world=3)
        froze = self._settle() is not None
        freeze = self._freeze() if froze else None
        return StockResult(
            start_s=None if started is None else started - began, worker_kill_s=worker, node_kill_s=node, join_s=join,
            froze=froze, freeze_s=freeze, etcd_down_ended=self._without(etcd),
        )  # fmt: skip

    def first_step_s(self, *, world: int) -> float:
        """Wall time of the first step at this world size. Raises RuntimeError after a while without one."""
        first = self._first(lambda row: row["world"] == world, since=0.0, until=time.time() + LIMIT_S)
        if first is None:
            raise RuntimeError(f"stock torchrun took no step on {world} nodes in {LIMIT_S:g} s")
        return first

    def end(self) -> None:
        """Leave nothing running."""
        for agent in self._agents:
            if agent.poll() is None:
                self._kill(agent)

    def _worker(self) -> int:
        return children(self._agents[-1].pid)[0]

    def _kill_node(self) -> None:
        self._kill(self._agents[-1])

    def _freeze(self) -> float | None:
        pids = [self._agents[-1].pid, *descendants(self._agents[-1].pid)]
        at = time.time()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        # What was under way when it froze may still be logged for a moment.
        back = self._first(lambda _row: True, since=at + 2, until=at + SILENT_S)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        return None if back is None else back - at

    def _without(self, etcd: EtcdServer) -> int | None:
        alive = [agent for agent in self._agents if agent.poll() is None]
        if self._settle() is None:
            return None  # it had not come back from what was before
        etcd.kill()
        until_s = time.time() + SILENT_S
        for agent in alive:
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(max(0.0, until_s - time.time()))
        return sum(agent.poll() is not None for agent in alive)

    def _kill(self, agent: subprocess.Popen[bytes]) -> None:
        pids = descendants(agent.pid)
        agent.kill()
        for pid in pids:
            subprocess.run(["kill", "-9", str(pid)], check=False, stderr=subprocess.DEVNULL)
        agent.wait()

    def _fault(self, fault, *, world: int = 0) -> float | None:
        old = {row["pid"] for row in self.rows()}
        at = time.time()
        fault()
        back = self._first(lambda row: row["pid"] not in old and row["world"] >= world, since=at)
        self._settle()
        return None if back is None else back - at

    def _settle(self) -> float | None:
        reached = max((row["step"] for row in self.rows()), default=0)
        return self._first(lambda row: row["step"] > reached + 30, since=time.time())

    def rows(self) -> list[dict]:
        """The step log: `t` (wall time), `step`, `world`, `pid` of each step of each worker."""
        text = self._log.read_text() if self._log.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def _first(self, test, *, since: float, until: float | None = None) -> float | None:
        while time.time() < (since + LIMIT_S if until is None else until):
            hit = next((row["t"] for row in self.rows() if row["t"] >= since and test(row)), None)
            if hit is not None:
                return hit
            time.sleep(0.1)  # the peer has no events to wait for
        return None


def measure_stock(environment: Path, directory: Path, *options: str) -> StockResult:
    """Run stock once."""
    torchrun = make_environment(environment)
    server = EtcdServer(directory / "etcd")
    server.start("--enable-v2=true")
    run = StockRun(torchrun, directory, server.endpoint, *options)
    try:
        return run.measure(server)
    finally:
        run.end()
        server.stop()
