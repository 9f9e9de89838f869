"""The peer's side of `make bench-goodput`: stock torchrun, its `etcd` backend and a plain DDP loop on the same faults.

What operators would do for it is done: a node whose agent has given up is started again, as one that was lost is.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from elastic.local.etcd import EtcdCluster
from elastic.local.node import children, descendants
from tests.bench.goodput_trace import Fault, Field, moving_s, play
from tests.bench.stock import StockRun, make_environment

_OPTIONS = ("--rdzv-conf=last_call_timeout=1", "--max-restarts=1000")
"""Its best settings: a shorter wait for further nodes than its default of 30 s, and restarts without end."""


class StockNode:
    """An agent of stock torchrun's and its workers."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    @property
    def pid(self) -> int:
        """The agent's."""
        return self.process.pid

    def workers(self) -> list[int]:
        """The pids of its workers."""
        return children(self.pid)

    def signal(self, number: signal.Signals) -> None:
        """Signal the agent alone."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """End agent and workers at once."""
        pids = descendants(self.pid)
        self.process.kill()
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()


class StockNodes:
    """Nodes by name, of one run."""

    def __init__(self, run: StockRun) -> None:
        self._run = run
        self.nodes: dict[str, StockNode] = {}

    def start(self, name: str) -> None:
        """One more."""
        self.nodes[name] = StockNode(self._run.start())


class StockField(Field):
    """The same, but what gave up by itself is started again too."""

    def __init__(self, nodes: StockNodes, etcd: EtcdCluster) -> None:
        super().__init__(nodes, etcd)
        self.gave_up: set[str] = set()

    def strike(self, fault: Fault, *, now_s: float) -> None:
        """First replace who has gone since the last fault, then let this one happen."""
        gone = {name for name, node in self.nodes.nodes.items() if node.process.poll() is not None}
        for name in gone - self.ended - self.gave_up:
            self.gave_up.add(name)
            self.start()
        super().strike(fault, now_s=now_s)


def productive_s(rows: Sequence[Mapping[str, Any]]) -> float:
    """Time of the steps that count, from the step log: of each step the last execution, each once.

    `rows`: `t` (seconds), `step`, `pid`. A process's first step has no step before it and counts as the median.
    """
    taken: dict[tuple[int, int], float] = {}
    for _, own in itertools.groupby(sorted(rows, key=lambda row: (row["pid"], row["t"])), key=lambda row: row["pid"]):
        for before, after in itertools.pairwise(own):
            taken[after["pid"], after["step"]] = after["t"] - before["t"]
    if not taken:
        return 0.0
    usual_s = median(taken.values())
    last = {row["step"]: row for row in sorted(rows, key=lambda row: row["t"])}
    return moving_s([taken.get((row["pid"], row["step"]), usual_s) for row in last.values()])


def stock_goodput(environment: Path, directory: Path, faults: Sequence[Fault], *, seconds: float) -> tuple[float, str]:
    """Play the trace against stock. Returns the productive share of the time, and what happened in words."""
    torchrun = make_environment(environment)
    with EtcdCluster(directory / "etcd", options=("--enable-v2=true",)) as etcd:
        run = StockRun(torchrun, directory, etcd.endpoints[0], *_OPTIONS)
        field = StockField(StockNodes(run), etcd)
        try:
            for _ in range(3):
                field.start()
            began_s = run.first_step_s(world=3)
            play(field, faults, seconds=seconds)
        finally:
            run.end()
        rows = [row for row in run.rows() if began_s <= row["t"] <= began_s + seconds]
    last_s = max((row["t"] for row in rows), default=began_s) - began_s
    return productive_s(rows) / seconds, (
        f"stock: {dict(field.fired)}, {len(field.gave_up)} agents gave up by themselves and were replaced; "
        f"its last step was {last_s:.0f} s into the trace"
    )
