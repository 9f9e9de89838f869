"""Faults that nobody is told of, in the recovery benchmark: nodes frozen or cut off, and etcd lost, frozen or down."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from elastic.clock import SYSTEM_CLOCK
from elastic.events import Record, StepCommitted, WorkerStarted, WorldFormed
from elastic.local.cluster import Cluster, ClusterSpec
from elastic.local.etcd import EtcdCluster
from tests.bench.recovery_rounds import SETTINGS, Recovery, fault, settle
from tests.harness.etcd_admin import leader
from tests.harness.faults import Frozen
from tests.harness.netns import Net, etcd_in, why_no_netns
from tests.harness.survival import durable

SPARSE = SETTINGS | {"ELASTIC__CHECKPOINT__SAVE_INTERLEAVED_STEPS": "100000"}
"""No save falls due: one would ask a frozen agent for its commit, and so find it before its lease ends."""
AWAY_S = 15.0
"""How long a member of etcd is away: three times the lease."""
_NAMES = "abc"
_LIMIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Outage:
    """What three nodes did while etcd was in trouble, and up to their next durable save after it."""

    what: str
    seconds: float
    steps: int
    """Done during the outage."""
    restarts: int
    """Workers that were started and worlds that were formed."""
    lost_steps: int
    pause_s: float
    """The longest time without a step, from its beginning on."""


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """Faults of which no process and no kernel tells, and etcd's. `cut` is empty where no network can be made."""

    frozen: Sequence[Recovery]
    cut: Sequence[Recovery]
    lease: Sequence[Recovery]
    outages: Sequence[Outage]


def measure_trouble(endpoint: str, directory: Path, *, times: int) -> Trouble:
    """Freeze and cut off so many nodes one after the other, then let etcd be in trouble; once in short for `times` 1.

    `endpoint`: an etcd for what does not concern etcd.
    """
    places = [directory / name for name in ("frozen", "lease", "cut", "outages")]
    for place in places:
        place.mkdir()
    if refused := why_no_netns():
        print(f"no node is cut off here: {refused}", flush=True)
    brief = {"away_s": 2.0, "down_s": 2.0} if times == 1 else {}
    return Trouble(
        frozen=frozen_nodes(endpoint, places[0], times=times),
        lease=frozen_agents(endpoint, places[1], times=times),
        cut=() if refused else cut_nodes(places[2], times=times),
        outages=outages(places[3], **brief),
    )


def frozen_nodes(endpoint: str, directory: Path, *, times: int) -> list[Recovery]:
    """One of three nodes stops, agent and workers, and comes back; so many times."""
    with Cluster(ClusterSpec(directory=directory, etcd_endpoint=endpoint, environ=SETTINGS)) as cluster:
        _start(cluster)
        return [_freeze(cluster, _NAMES[number % 3], workers=True) for number in range(times)]


def frozen_agents(endpoint: str, directory: Path, *, times: int) -> list[Recovery]:
    """Only the agent stops: its worker goes on, so that nobody waits for it and its lease alone tells."""
    with Cluster(ClusterSpec(directory=directory, etcd_endpoint=endpoint, environ=SPARSE)) as cluster:
        _start(cluster)
        return [_freeze(cluster, _NAMES[number % 3], workers=False) for number in range(times)]


def cut_nodes(directory: Path, *, times: int) -> list[Recovery]:
    """One of three nodes reaches nobody any more, nor etcd, and nobody is told; then it is let in again."""
    with Net(*_NAMES, "etcd") as net, etcd_in(net, "etcd", directory / "etcd") as endpoint:
        with Cluster(ClusterSpec(directory=directory, etcd_endpoint=endpoint, environ=SETTINGS)) as cluster:
            _start(cluster, net)
            found = []
            for number in range(times):
                victim = _NAMES[number % 3]
                found.append(fault(cluster, lambda victim=victim: net.isolate(victim), world_size=2))  # type: ignore[misc]
                if not net.dropped(victim, _NAMES[(number + 1) % 3]):
                    raise RuntimeError(f"{victim} was not cut off")
                since = cluster.now()
                net.heal()
                cluster.wait_step(1, world_size=3, since=since)
        return found


def outages(directory: Path, *, away_s: float = AWAY_S, down_s: float = 60.0) -> list[Outage]:
    """Three members of etcd: the leading one is killed, the leading one is frozen, and all are down."""
    with (
        EtcdCluster(directory / "etcd") as etcd,
        Cluster(ClusterSpec(directory=directory, etcd_endpoint=etcd.endpoint, environ=SETTINGS)) as cluster,
    ):
        _start(cluster)
        lost = leader(*etcd.members)
        found = [_outage(cluster, "the leading member killed", lost.kill, etcd.start, seconds=away_s)]
        stopped = leader(*etcd.members)
        found.append(_outage(cluster, "the leading member frozen", stopped.pause, stopped.resume, seconds=away_s))
        found.append(_outage(cluster, "all members down", etcd.kill, etcd.start, seconds=down_s))
    return found


def outage(records: Sequence[Record], *, what: str, seconds: float, at_s: float, during: int) -> Outage:
    """What the records since an outage began, at `at_s`, tell of it; the first `during` were read before its end."""
    steps = [r for r in records if isinstance(r.event, StepCommitted)]
    done: dict[int, set[int]] = {}
    for record in steps:
        done.setdefault(record.event.iteration, set()).add(record.generation)  # type: ignore[attr-defined]
    times_s = sorted([at_s, *(r.time_s for r in steps if r.time_s > at_s)])
    worlds = {r.generation for r in records if isinstance(r.event, WorldFormed)}
    return Outage(
        what=what,
        seconds=seconds,
        steps=len({r.event.iteration for r in records[:during] if isinstance(r.event, StepCommitted)}),
        restarts=len(worlds) + sum(isinstance(r.event, WorkerStarted) for r in records),
        lost_steps=sum(len(generations) - 1 for generations in done.values()),
        pause_s=max(later - earlier for earlier, later in itertools.pairwise(times_s)),
    )


def _start(cluster: Cluster, net: Net | None = None) -> None:
    for name in _NAMES:
        cluster.start(name, prefix=net.prefix(name) if net else ())
    cluster.wait_step(1, world_size=3)


def _freeze(cluster: Cluster, victim: str, *, workers: bool) -> Recovery:
    frozen = Frozen(cluster.nodes[victim], workers=workers)
    with contextlib.ExitStack() as stack:
        found = fault(cluster, lambda: stack.enter_context(frozen), world_size=2)
        if not frozen.fired:
            raise RuntimeError(f"{victim} was not frozen")
        since = cluster.now()
    cluster.wait_step(1, world_size=3, since=since)
    return found


def _outage(
    cluster: Cluster, what: str, strike: Callable[[], object], heal: Callable[[], object], *, seconds: float
) -> Outage:
    settle(cluster, world_size=3)
    since, at_s = cluster.now(), time.time()
    strike()
    SYSTEM_CLOCK.sleep(seconds)
    during = cluster.now()
    heal()
    cluster.wait(durable, what="a save after the outage", limit_s=_LIMIT_S, since=cluster.now())
    settle(cluster, world_size=None)
    found = cluster.follower.records[since:]
    return outage(found, what=what, seconds=seconds, at_s=at_s, during=during - since)
