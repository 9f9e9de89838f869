"""`make bench-recovery`: from a fault to the next optimizer step, ours and stock torchrun's side by side in one run.

Both sides train the same small model on three nodes of one worker each, over a real etcd. Our medians are of several
rounds; stock, which is slow, is measured once. `--quick` is for the test suite: it leaves stock out and checks that
the machinery counts right, never a time.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from elastic.events import StepCommitted, read_records
from elastic.local.cluster import Cluster, ClusterSpec
from elastic.local.etcd import EtcdServer
from elastic.local.node import ROOT
from tests.bench.stock import StockResult, measure_stock
from tests.bench.table import Row, show

SETTINGS = {
    "ELASTIC__JOB__TARGET": "tests.bench.small_lm:job",
    "ELASTIC__TRAINING__GLOBAL_BATCH_SIZE": "12",
    "ELASTIC__TRAINING__MICRO_BATCH_SIZE": "4",
    "ELASTIC__TRAINING__STEPS": "1000000",
    "ELASTIC__CHECKPOINT__SAVE_INTERLEAVED_STEPS": "10",
}


@dataclass(frozen=True, kw_only=True)
class OwnRound:
    """One round of ours, in seconds."""

    start_s: float
    worker_kill_s: float
    node_kill_s: float
    join_pause_s: float


def own_round(endpoint: str, directory: Path) -> OwnRound:
    """Start three nodes, kill a worker, kill a node, let one join; all at step boundaries that stock also sees."""
    spec = ClusterSpec(directory=directory, etcd_endpoint=endpoint, environ=SETTINGS)
    with Cluster(spec) as cluster:
        began = time.time()
        for name in ("a", "b", "c"):
            cluster.start(name)
        started_s = cluster.wait_step(1, world_size=3).time_s - began
        _settle(cluster, 3)
        worker_s = _fault(cluster, lambda: os.kill(cluster.nodes["c"].workers()[0], signal.SIGKILL), world_size=3)
        node_s = _fault(cluster, lambda: cluster.nodes["c"].kill(), world_size=2)
        join_s = _join_pause(cluster)
        return OwnRound(start_s=started_s, worker_kill_s=worker_s, node_kill_s=node_s, join_pause_s=join_s)


def _fault(cluster: Cluster, fault, *, world_size: int) -> float:
    """Seconds from the fault to the first step of the generation after it."""
    cluster.now()
    generation = max(r.generation for r in cluster.follower.records)
    at = time.time()
    fault()
    back = cluster.wait(
        lambda r: isinstance(r.event, StepCommitted) and r.generation > generation,
        what="a step after the fault",
        limit_s=120,
    )
    assert back.event.world_size == world_size
    _settle(cluster, world_size)
    return back.time_s - at


def _join_pause(cluster: Cluster) -> float:
    """The longest gap between two steps around a join: how long training paused."""
    since = cluster.now()
    cluster.start("d")
    cluster.wait_step(1, world_size=3, since=since)
    steps = sorted(r.time_s for r in cluster.follower.records[since:] if isinstance(r.event, StepCommitted))
    return max(later - earlier for earlier, later in itertools.pairwise(steps))


def _settle(cluster: Cluster, world_size: int) -> None:
    since = cluster.now()
    reached = max(r.event.iteration for r in cluster.follower.records if isinstance(r.event, StepCommitted))
    cluster.wait_step(reached + 30, world_size=world_size, since=since)


def cold_start_s(directory: Path) -> float:
    """One cold worker, alone: from starting Python to its first step."""
    environ = {
        **os.environ,
        **SETTINGS,
        "ELASTIC__TRAINING__STEPS": "2",
        "ELASTIC__CHECKPOINT__SAVE_PATH": str(directory),
    }
    began = time.time()
    subprocess.run([sys.executable, "elastic/worker.py"], cwd=ROOT, env=environ, check=True, capture_output=True)
    steps = [r.time_s for r in read_records(directory / "events") if isinstance(r.event, StepCommitted)]
    return min(steps) - began


def rows(own: list[OwnRound], cold: list[float], stock: StockResult | None) -> list[Row]:
    """The table: medians of ours beside stock's one run."""
    start, worker, node, join = (
        median(getattr(each, name) for each in own)
        for name in ("start_s", "worker_kill_s", "node_kill_s", "join_pause_s")
    )
    cold_s = median(cold)
    return [
        _against("start of 3 nodes", start, stock and stock.start_s, times=4.0),
        _against("SIGKILL one worker", worker, stock and stock.worker_kill_s, times=5.0),
        _against("SIGKILL one node", node, stock and stock.node_kill_s, times=5.0),
        Row(
            case="SIGKILL one node, beyond a cold worker start",
            ours=node - cold_s,
            peer=None,
            limit=cold_s,
            unit="s",
            target="<= 1.5 (limit: the cold start)",
            met=node - cold_s <= 1.5,
        ),
        _against("a node joins: training paused", join, stock and stock.join_s, times=5.0),
    ]


def _against(case: str, ours: float, peer: float | None, *, times: float) -> Row:
    return Row(
        case=case,
        ours=ours,
        peer=peer,
        limit=None,
        unit="s",
        target=f"{times:g} x faster than stock",
        met=peer is None or ours * times <= peer,
    )


def main() -> None:
    """Measure, print, and fail when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of ours, no stock")
    parser.add_argument("--stock-environment", type=Path, default=ROOT / ".venv-stock")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="elastic-bench-") as name:
        directory = Path(name)
        own, cold = [], []
        with EtcdServer(directory / "etcd") as server:
            for number in range(1 if args.quick else args.rounds):
                place = directory / f"round{number}"
                place.mkdir()
                own.append(own_round(server.endpoint, place))
                cold.append(cold_start_s(place / "alone"))
                print(own[-1], f"cold start {cold[-1]:.2f} s", flush=True)
        stock = None
        if not args.quick:
            (directory / "stock").mkdir()
            stock = measure_stock(args.stock_environment, directory / "stock")
            print(stock, flush=True)
    table = rows(own, cold, stock)
    show("recovery", table)
    if not args.quick and not all(row.met for row in table):
        sys.exit(1)


if __name__ == "__main__":
    main()
