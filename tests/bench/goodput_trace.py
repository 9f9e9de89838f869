"""The faults of `make bench-goodput`: when each happens, drawn by a seed, and how it is made to happen."""

from __future__ import annotations

import heapq
import itertools
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

from elastic.local.etcd import EtcdCluster
from elastic.local.node import descendants

MEAN_S = 20.0
MIX = {"worker": 40, "node": 30, "freeze": 10, "leave": 15, "etcd": 5}
BACK_S = 4.0
"""From the loss of a node to the start of another, and from the loss of a member of etcd to its return."""
FROZEN_S = 6.0
STANDING = 3.0
"""A step that took more than so many times the median counts as the median: the rest of it stood still."""


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


def moving_s(steps_s: Sequence[float]) -> float:
    """The sum of the steps' seconds, without what they stood still, waiting for a peer that was frozen or dead."""
    usual_s = median(steps_s) if steps_s else 0.0
    return sum(each if each <= STANDING * usual_s else usual_s for each in steps_s)


class Target(Protocol):
    """A node that may be struck: an agent and its workers."""

    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        """The agent's."""

    def workers(self) -> list[int]:
        """The pids of its workers."""

    def signal(self, number: signal.Signals) -> None:
        """Signal the agent alone."""

    def kill(self) -> object:
        """End agent and workers at once."""


class Nodes(Protocol):
    """Where nodes are started: ours, or the peer's."""

    @property
    def nodes(self) -> Mapping[str, Target]:
        """All that were ever started, by name."""

    def start(self, name: str, /) -> Any:
        """One more."""


class Field:
    """The nodes and the etcd that things happen to. Whatever is to follow on a fault waits in `later`."""

    def __init__(self, nodes: Nodes, etcd: EtcdCluster) -> None:
        self.nodes, self.etcd = nodes, etcd
        self.fired: Counter[str] = Counter()
        self.later: list[tuple[float, int, Callable[[], object]]] = []
        self.ended: set[str] = set()
        """Nodes that were killed or asked to leave: another one comes for each by itself."""
        self._names = (f"n{number}" for number in itertools.count())
        self._order = itertools.count()
        self._frozen: set[str] = set()

    def start(self) -> None:
        """One more node."""
        self.nodes.start(next(self._names))

    def up(self) -> list[str]:
        """Nodes that are there and not frozen, in order of their start."""
        nodes = self.nodes.nodes.items()
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
        for pid in self.nodes.nodes[name].workers():
            os.kill(pid, signal.SIGKILL)

    def _node(self, name: str, now_s: float) -> None:
        self.nodes.nodes[name].kill()
        self.ended.add(name)
        self._then(now_s + BACK_S, self.start)

    def _leave(self, name: str, now_s: float) -> None:
        self.nodes.nodes[name].signal(signal.SIGTERM)
        self.ended.add(name)
        self._then(now_s + BACK_S, self.start)

    def _freeze(self, name: str, now_s: float) -> None:
        node = self.nodes.nodes[name]
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
