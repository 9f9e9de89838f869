"""`make bench-goodput`: what is left of the time when faults come one after the other, on a trace that can be repeated.

The trace is made by a seed: workers killed (40 %), nodes killed and replaced (30 %), nodes frozen for a while (10 %),
nodes that leave and are replaced (15 %), members of etcd killed and started again (5 %), 20 s apart on the average.
Productive is the time of the steps that led to the final state, each once, from the end of the step before to its own
(on both sides: what lies between two steps is part of training); all else (recovery, steps done again, saves that
training waited for, whatever stands still) is not. The same trace is played to stock torchrun after it.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from elastic.data.audit import Account, account
from elastic.events import Record, Recovered, StepCommitted, read_records
from elastic.local.cluster import Cluster, ClusterSpec
from elastic.local.etcd import EtcdCluster
from elastic.local.node import ROOT
from tests.bench.goodput_stock import stock_goodput
from tests.bench.goodput_trace import Fault, Field, moving_s, play, trace
from tests.bench.recovery_rounds import SETTINGS
from tests.bench.table import Row, show


def productive_s(records: Sequence[Record]) -> float:
    """Time of the steps that count: of each iteration the last generation's, by the lowest rank that told of it.

    A step's time is that from the end of the step before it, without what it waited for a save; a generation's first
    step counts from its own beginning.
    """
    ends: dict[tuple[int, int | None, int], float] = {}
    for record in records:
        if isinstance(record.event, StepCommitted):
            ends[record.generation, record.rank, record.event.iteration] = record.time_s
    best: dict[int, tuple[int, int, float]] = {}
    for record in records:
        event = record.event
        if isinstance(event, StepCommitted):
            before_s = ends.get((record.generation, record.rank, event.iteration - 1))
            spent_s = event.seconds if before_s is None else record.time_s - before_s - (event.save_s or 0.0)
            mine = (-record.generation, record.rank or 0, spent_s)
            best[event.iteration] = min(best.get(event.iteration, mine), mine)
    return moving_s([spent_s for _, _, spent_s in best.values()])


def pauses_s(records: Sequence[Record]) -> list[float]:
    """The time from the last step of a generation to the first one of a later generation, one after the other."""
    steps = sorted((r for r in records if isinstance(r.event, StepCommitted)), key=lambda r: r.time_s)
    pairs = itertools.pairwise(steps)
    return [later.time_s - earlier.time_s for earlier, later in pairs if later.generation > earlier.generation]


def recoveries(records: Sequence[Record]) -> dict[str, list[float]]:
    """By cause and path: seconds from the detection of each fault to the next step."""
    found: dict[str, list[float]] = {}
    for record in records:
        if isinstance(record.event, Recovered):
            found.setdefault(f"{record.event.cause} by {record.event.path}", []).append(record.event.seconds)
    return found


def own_goodput(directory: Path, faults: Sequence[Fault], *, seconds: float) -> tuple[float, Account]:
    """Play the trace to ours and say where the time went. Returns the productive share, and the account of samples."""
    with EtcdCluster(directory / "etcd") as etcd:
        environ = {**SETTINGS, "ELASTIC__CHECKPOINT__SAVE_INTERLEAVED_STEPS": "100"}
        spec = ClusterSpec(directory=directory, etcd_endpoint=etcd.endpoint, environ=environ)
        with Cluster(spec) as cluster:
            field = Field(cluster, etcd)
            for _ in range(3):
                field.start()
            cluster.wait_step(20, world_size=3)
            since, began = cluster.now(), time.time()
            play(field, faults, seconds=seconds)
            cluster.now()
            taken = [r for r in cluster.follower.records[since:] if began <= r.time_s <= began + seconds]
        found = account(read_records(cluster.save_path / "events"), order=None)
    print(f"ours: {dict(field.fired)}; {found.recomputed_steps} steps done again; problems: {found.problems}")
    for what, times_s in sorted(recoveries(taken).items(), key=lambda each: -sum(each[1])):
        print(f"{what}: {len(times_s)} times, {sum(times_s):.1f} s in all, {max(times_s):.1f} s at most")
    standing = sorted(pauses_s(taken), reverse=True)
    longest = [round(each, 1) for each in standing[:8]]
    print(f"no step for {sum(standing):.1f} s in all around a change; the longest: {longest}", flush=True)
    return productive_s(taken) / seconds, found


def rows(share: float, found: Account, stock: float | None) -> list[Row]:
    """The table."""
    wrong = found.used_twice + found.never_used
    return [
        Row(case="goodput", ours=share, peer=stock, limit=1.0, unit="of the time", target=">= 0.95", met=share >= 0.95),
        Row(
            case="samples twice or never", ours=wrong, peer=None, limit=None, unit="samples", target="0",
            met=wrong == 0 and not found.problems,
        ),
    ]  # fmt: skip


def main() -> None:
    """Play the trace, account for it, and fail when the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-stock", action="store_true", help="ours only")
    parser.add_argument("--stock-environment", type=Path, default=ROOT / ".venv-stock")
    args = parser.parse_args()
    seconds = args.minutes * 60
    faults = trace(seed=args.seed, seconds=seconds)
    stock = None
    with tempfile.TemporaryDirectory(prefix="elastic-bench-") as name:
        directory = Path(name)
        share, found = own_goodput(directory, faults, seconds=seconds)
        if not args.no_stock:
            (directory / "stock").mkdir()
            stock, words = stock_goodput(args.stock_environment, directory / "stock", faults, seconds=seconds)
            print(words)
    table = rows(share, found, stock)
    show("goodput", table)
    if not all(row.met for row in table):
        sys.exit(1)


if __name__ == "__main__":
    main()
