"""`make bench-goodput`: what is left of the time when faults come one after the other, on a trace that can be repeated.

The trace is made by a seed: workers killed (40 %), nodes killed and replaced (30 %), nodes frozen for a while (10 %),
nodes that leave and are replaced (15 %), members of etcd killed and started again (5 %), 20 s apart on the average.
Productive is the time of the steps that led to the final state, each once; all else (recovery, steps done again, saves
that training waited for, whatever stands still) is not.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from elastic.data.audit import account
from elastic.events import Record, Recovered, StepCommitted, read_records
from elastic.local.cluster import Cluster, ClusterSpec
from elastic.local.etcd import EtcdCluster
from elastic.local.node import descendants
from tests.bench.recovery_rounds import SETTINGS
from tests.bench.table import Row, show

MEAN_S = 20.0
MIX = {"worker": 40, "node": 30, "freeze": 10, "leave": 15, "etcd": 5}
BACK_S = 4.0
"""From the loss of a node to the start of another, and from the loss of a member of etcd to its return."""
FROZEN_S = 6.0


@dataclass(frozen=True, order=True, kw_only=True)
class Fault:
    """What happens when, seconds from the start of the trace. `draw`: chooses whom among those there are."""

    at_s: float
    kind: str
    draw: int


def trace(*, seed: int, seconds: float) -> list[Fault]:
    """The faults of a run, the same for the same seed."""
    chance, at_s, faults = random.Random(seed), 0.0, []
    while (at_s := at_s + chance.expovariate(1 / MEAN_S)) < seconds:
        (kind,) = chance.choices(list(MIX), weights=list(MIX.values()))
        faults.append(Fault(at_s=at_s, kind=kind, draw=chance.randrange(1 << 16)))
    return faults


def productive_s(records: Sequence[Record]) -> float:
    """Time of the steps that count: of each iteration the last generation's, by the lowest rank that told of it."""
    best: dict[int, tuple[int, int, float]] = {}
    for record in records:
        event = record.event
        if isinstance(event, StepCommitted):
            mine = (-record.generation, record.rank or 0, event.seconds)
            best[event.iteration] = min(best.get(event.iteration, mine), mine)
    return sum(seconds for _, _, seconds in best.values())


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


class Field:
    """The nodes and the etcd that things happen to. Whatever is to follow on a fault waits in `later`."""

    def __init__(self, cluster: Cluster, etcd: EtcdCluster) -> None:
        self.cluster, self.etcd = cluster, etcd
        self.fired: Counter[str] = Counter()
        self.later: list[tuple[float, int, Callable[[], object]]] = []
        self._names = (f"n{number}" for number in itertools.count())
        self._order = itertools.count()
        self._frozen: set[str] = set()

    def start(self) -> None:
        """One more node."""
        self.cluster.start(next(self._names))

    def up(self) -> list[str]:
        """Nodes that are there and not frozen, in order of their start."""
        nodes = self.cluster.nodes.items()
        return [name for name, node in nodes if node.process.poll() is None and name not in self._frozen]

    def strike(self, fault: Fault, *, now_s: float) -> None:
        """Let it happen, if there is somebody for it to happen to who leaves another one alive."""
        up = self.up()
        if fault.kind == "etcd":
            member = self.etcd.members[fault.draw % len(self.etcd.members)]
            if not all(each.running for each in self.etcd.members):
                return
            member.kill()
            self._then(now_s + BACK_S, member.launch)
        elif len(up) > 1 or (fault.kind == "worker" and up):
            name = up[fault.draw % len(up)]
            {"worker": self._worker, "node": self._node, "freeze": self._freeze, "leave": self._leave}[fault.kind](
                name, now_s
            )
        else:
            return
        self.fired[fault.kind] += 1

    def _worker(self, name: str, now_s: float) -> None:
        for pid in self.cluster.nodes[name].workers():
            os.kill(pid, signal.SIGKILL)

    def _node(self, name: str, now_s: float) -> None:
        self.cluster.nodes[name].kill()
        self._then(now_s + BACK_S, self.start)

    def _leave(self, name: str, now_s: float) -> None:
        self.cluster.nodes[name].signal(signal.SIGTERM)
        self._then(now_s + BACK_S, self.start)

    def _freeze(self, name: str, now_s: float) -> None:
        node = self.cluster.nodes[name]
        pids = [node.pid, *descendants(node.pid)]
        self._frozen.add(name)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)

        def thaw() -> None:
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGCONT)
                except ProcessLookupError:
                    continue
            self._frozen.discard(name)

        self._then(now_s + FROZEN_S, thaw)

    def _then(self, at_s: float, what: Callable[[], object]) -> None:
        heapq.heappush(self.later, (at_s, next(self._order), what))


def play(field: Field, faults: Sequence[Fault], *, seconds: float) -> None:
    """Let the trace happen in real time, then wait for what was to follow on its last faults."""
    began = time.monotonic()
    coming: Iterator[Fault] = iter(faults)
    fault = next(coming, None)
    while True:
        follow_s = field.later[0][0] if field.later else float("inf")
        strike_s = fault.at_s if fault is not None else float("inf")
        until_s = min(follow_s, strike_s, seconds if fault is None else float("inf"))
        time.sleep(max(0.0, began + until_s - time.monotonic()))
        if follow_s <= until_s:
            heapq.heappop(field.later)[2]()
        elif fault is not None:
            field.strike(fault, now_s=fault.at_s)
            fault = next(coming, None)
        else:
            return


def main() -> None:
    """Play the trace, account for it, and fail when the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    seconds = args.minutes * 60
    with tempfile.TemporaryDirectory(prefix="elastic-bench-") as name, EtcdCluster(Path(name) / "etcd") as etcd:
        environ = {**SETTINGS, "ELASTIC__CHECKPOINT__SAVE_INTERLEAVED_STEPS": "100"}
        spec = ClusterSpec(directory=Path(name), etcd_endpoint=etcd.endpoint, environ=environ)
        with Cluster(spec) as cluster:
            field = Field(cluster, etcd)
            for _ in range(3):
                field.start()
            cluster.wait_step(20, world_size=3)
            since = cluster.now()
            began = time.time()
            play(field, trace(seed=args.seed, seconds=seconds), seconds=seconds)
            cluster.now()
            taken = [r for r in cluster.follower.records[since:] if began <= r.time_s <= began + seconds]
        found = account(read_records(cluster.save_path / "events"), order=None)
    share = productive_s(taken) / seconds
    print(
        f"{dict(field.fired)} in {seconds:.0f} s; {found.recomputed_steps} steps done again; problems: {found.problems}"
    )
    for what, times_s in sorted(recoveries(taken).items(), key=lambda each: -sum(each[1])):
        print(f"{what}: {len(times_s)} times, {sum(times_s):.1f} s in all, {max(times_s):.1f} s at most")
    standing = sorted(pauses_s(taken), reverse=True)
    print(
        f"no step for {sum(standing):.1f} s in all around a change; the longest: {[round(s, 1) for s in standing[:8]]}"
    )
    sound = not found.problems and found.used_twice == found.never_used == 0
    table = [
        Row(case="goodput", ours=share, peer=None, limit=1.0, unit="of the time", target=">= 0.95", met=share >= 0.95),
        Row(
            case="samples twice or never", ours=found.used_twice + found.never_used, peer=None, limit=None,
            unit="samples", target="0", met=sound,
        ),
    ]  # fmt: skip
    show("goodput", table)
    if not all(row.met for row in table):
        sys.exit(1)


if __name__ == "__main__":
    main()
