"""`make bench-rendezvous`: thousands of simulated agents on one real etcd, beside a bare client and torch's own.

Agents are the real coordinator, machine and client without workers, many in a few processes that share one channel
each. The limit beside each figure is a bare client that does the least possible in the same run: a lease, a leased key
and a watch for each agent at a start; one write each and two changes of a watched key at a re-forming. `--quick` is
for the test suite: a tiny size, whose counts are checked, never a time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Self

from elastic.local.etcd import EtcdServer, free_port
from elastic.local.node import ROOT
from elastic.rendezvous.etcd import EtcdStore
from elastic.rendezvous.options import RendezvousOptions
from tests.bench.table import Row, show

TORCH_LIMIT_S = 100.0
FLAT = 1.3


@dataclass(frozen=True, kw_only=True)
class Target:
    """Seconds on a quiet machine, where the bare client took `bare_s`; on a busy one their ratio decides."""

    seconds: float
    bare_s: float

    def is_met(self, seconds: float, *, bare_s: float) -> bool:
        return seconds <= self.seconds or seconds / bare_s <= self.seconds / self.bare_s

    def __str__(self) -> str:
        return f"<= {self.seconds:g} s or {self.seconds / self.bare_s:.1f} x limit"


START_TARGETS = {1000: Target(seconds=2.0, bare_s=0.55), 4000: Target(seconds=6.0, bare_s=2.2)}
REFORM_TARGETS = {4000: Target(seconds=1.0, bare_s=1.05)}


class Process:
    """One host process: orders go in, answers come out."""

    def __init__(self, module: str, order: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(order)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def say(self, do: str, **order: Any) -> None:
        self._process.stdin.write(json.dumps({"do": do, **order}) + "\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a host process ended with {self._process.wait()}")
        return json.loads(line)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


@dataclass
class Traffic:
    """Messages and bytes, both directions, by kind; CPU of agents and etcd, the only figure that load hardly moves."""

    messages: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    cpu_s: float = 0.0

    def cost(self, unit: str) -> float:
        """Renewals go by the clock, not by the size of the job: only of CPU they cannot be taken out."""
        if unit == "CPU seconds":
            return self.cpu_s
        counted = getattr(self, unit)
        return counted.total() - counted["LeaseKeepAlive"]

    def per_agent(self, nodes: int) -> str:
        kinds = ", ".join(f"{kind} {count / nodes:.2f}" for kind, count in sorted(self.messages.items()))
        return (
            f"{self.messages.total() / nodes:.1f} messages, {self.bytes.total() / nodes:.0f} bytes, "
            f"{1000 * self.cpu_s / nodes:.2f} ms of CPU, etcd's included ({kinds})"
        )


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round at one size: seconds, the bare client's beside them, and what it cost in messages."""

    nodes: int
    start_s: float
    member_s: float
    leader_s: float
    bare_start_s: float
    bare_reform_s: float
    start: Traffic
    member: Traffic
    leader: Traffic
    bare_start: Traffic
    bare_reform: Traffic


class Hosts:
    """The host processes of one round."""

    def __init__(self, server: EtcdServer, *, nodes: int, processes: int, ttl_s: int) -> None:
        self._server, self._cpu_s = server, 0.0
        endpoint = server.endpoint
        edges = [nodes * number // processes for number in range(processes + 1)]
        common = {"job": f"bench-{time.monotonic_ns()}", "endpoint": endpoint, "nodes": nodes, "ttl_s": ttl_s}
        self._processes = [
            Process("tests.bench.rendezvous_host", {**common, "first": first, "count": last - first})
            for first, last in itertools.pairwise(edges)
        ]
        options = RendezvousOptions(job_id="bench", min_nodes=1, max_nodes=1, endpoints=(endpoint,))
        self._store = EtcdStore(options)

    def __enter__(self) -> Self:
        for process in self._processes:
            process.hear()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.end()
        self._store.close()

    def every(self, do: str, **order: Any) -> list[dict[str, Any]]:
        for process in self._processes:
            process.say(do, **order)
        return [process.hear() for process in self._processes]

    def timed(self, do: str, **order: Any) -> float:
        """Seconds until the last process was through with it."""
        began = time.monotonic()
        answers = self.every(do, **order)
        if not all(answer.get("formed", True) for answer in answers):
            raise RuntimeError(f"{do} was not done in time: {answers}")
        return max(answer["at_s"] for answer in answers) - began

    def bare_reform(self) -> float:
        """One write each, and the one watched key changed before and after."""
        seconds = self.timed("bare_puts")
        for _ in range(2):
            for process in self._processes:
                process.say("bare_fan_out")
            began = time.monotonic()
            self._store.put("/bare-world", "x" * 600)
            seconds += max(process.hear()["at_s"] for process in self._processes) - began
        return seconds

    def lose(self, process: int, number: int) -> float:
        """From the moment that an agent's lease is gone until the last of the others is in the next generation."""
        generation = max(answer["generation"] for answer in self.every("formed", after=0))
        self._processes[process].say("kill", number=number)
        lease = self._processes[process].hear()["lease"]
        self.traffic()
        self._store.revoke(lease)
        return self.timed("formed", after=generation)

    def leader(self) -> tuple[int, int]:
        """(process, agent) of the leader."""
        found = [answer["leader"] for answer in self.every("leader")]
        process = next(number for number, agent in enumerate(found) if agent is not None)
        return process, found[process]

    def traffic(self) -> Traffic:
        """What was sent and received since the last call."""
        traffic, cpu_s = Traffic(), cpu_s_of(self._server)
        for answer in self.every("count"):
            cpu_s += answer["cpu_s"]
            for kind, (messages, size) in answer["traffic"].items():
                traffic.messages[kind] += messages
                traffic.bytes[kind] += size
        traffic.cpu_s, self._cpu_s = cpu_s - self._cpu_s, cpu_s
        return traffic


def cpu_s_of(server: EtcdServer) -> float:
    """CPU seconds that etcd has used."""
    fields = Path(f"/proc/{server._process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(server: EtcdServer, *, nodes: int, processes: int, ttl_s: int) -> Round:
    """One round: start, lose a member, lose the leader; the bare client first, on the same channels."""
    with Hosts(server, nodes=nodes, processes=processes, ttl_s=ttl_s) as hosts:
        hosts.traffic()
        bare_start_s, bare_start = hosts.timed("bare_start"), hosts.traffic()
        bare_reform_s, bare_reform = hosts.bare_reform(), hosts.traffic()
        hosts.every("bare_end")
        hosts.traffic()
        start_s, start = hosts.timed("start"), hosts.traffic()
        process, agent = hosts.leader()
        other = (process + 1) % processes if processes > 1 else process
        member_s, member = hosts.lose(other, agent + 1 if other == process else 0), hosts.traffic()
        leader_s, leader = hosts.lose(*hosts.leader()), hosts.traffic()
        return Round(
            nodes=nodes, start_s=start_s, member_s=member_s, leader_s=leader_s, bare_start_s=bare_start_s,
            bare_reform_s=bare_reform_s, start=start, member=member, leader=leader, bare_start=bare_start,
            bare_reform=bare_reform,
        )  # fmt: skip


def measure_torch(nodes: int, *, processes: int = 2) -> float | None:
    """Seconds until the last agent of torch's dynamic rendezvous was in; None where not all were in time."""
    port = free_port()
    edges = [nodes * number // processes for number in range(processes + 1)]
    common = {"nodes": nodes, "limit_s": TORCH_LIMIT_S, "port": port}
    hosts = []
    try:
        for first, last in itertools.pairwise(edges):
            hosts.append(
                Process("tests.bench.rendezvous_torch", {**common, "count": last - first, "hosts": first == 0})
            )
            hosts[-1].hear()
        began = time.monotonic()
        for host in hosts:
            host.say("join")
        answers = [host.hear() for host in hosts]
        print(f"torch at {nodes}: {answers}", flush=True)
        return max(answer["at_s"] for answer in answers) - began if all(a["formed"] for a in answers) else None
    finally:
        for host in hosts:
            host.end()


def rows(rounds: list[Round], torch: dict[int, float | None], *, sizes: list[int]) -> list[Row]:
    """Medians by size, the bare client as the limit; then how flat the cost is from least to most of `sizes`."""
    table = []
    for nodes in sorted({each.nodes for each in rounds}):
        here = [each for each in rounds if each.nodes == nodes]
        bare_start_s, bare_reform_s = (median(getattr(e, n) for e in here) for n in ("bare_start_s", "bare_reform_s"))
        start_s = median(each.start_s for each in here)
        table.append(_row(f"start of {nodes}", start_s, bare_start_s, torch.get(nodes), START_TARGETS.get(nodes)))
        for what in ("member", "leader"):
            seconds = median(getattr(each, f"{what}_s") for each in here)
            case = f"loss of {'a member' if what == 'member' else 'the leader'} of {nodes}"
            table.append(_row(case, seconds, bare_reform_s, None, REFORM_TARGETS.get(nodes)))
    first, last = min(sizes), max(sizes)
    if first != last:
        table.extend(_flat(rounds, first=first, last=last))
    return table


def _row(case: str, seconds: float, bare_s: float, peer: float | None, target: Target | None) -> Row:
    return Row(
        case=case, ours=seconds, peer=peer, limit=bare_s, unit="s",
        target=str(target or "-"), met=target is None or target.is_met(seconds, bare_s=bare_s),
    )  # fmt: skip


def _flat(rounds: list[Round], *, first: int, last: int) -> list[Row]:
    """What the largest size costs each agent, as a multiple of what the smallest does."""
    found = []
    for what in ("start", "member", "leader"):
        for unit in ("messages", "bytes", "CPU seconds"):

            def each_agent(nodes: int, what: str = what, unit: str = unit) -> float:
                here = [getattr(each, what).cost(unit) for each in rounds if each.nodes == nodes]
                return median(here) / nodes

            ratio = each_agent(last) / each_agent(first)
            case = f"{what}: {unit} per agent, {last} against {first}"
            found.append(
                Row(case=case, ours=ratio, peer=None, limit=1.0, unit="x", target=f"<= {FLAT}", met=ratio <= FLAT)
            )
    return found


def main() -> None:
    """Measure, print, and fail when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[250, 1000, 4000])
    parser.add_argument("--torch-sizes", type=int, nargs="*", default=[64, 128, 192])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--ttl", type=int, default=30, help="renewals begin after a third of it: not what is measured")
    parser.add_argument("--quick", action="store_true", help="70 and 140 agents once, torch left out")
    args = parser.parse_args()
    if args.quick:
        args.sizes, args.torch_sizes, args.rounds, args.processes = [70, 140], [], 1, 1
    rounds: list[Round] = []
    for nodes in [*(size for size in args.torch_sizes if size not in args.sizes), *args.sizes]:
        for number in range(args.rounds):
            with (
                tempfile.TemporaryDirectory(prefix="elastic-bench-") as name,
                EtcdServer(Path(name) / "etcd") as server,
            ):
                rounds.append(measure(server, nodes=nodes, processes=args.processes, ttl_s=args.ttl))
            done = rounds[-1]
            print(
                f"{nodes} agents in {args.processes} processes, round {number + 1}: start {done.start_s:.2f} s "
                f"(bare {done.bare_start_s:.2f}), member {done.member_s:.2f} s, leader {done.leader_s:.2f} s "
                f"(bare {done.bare_reform_s:.2f})",
                flush=True,
            )
        for what in ("start", "member", "leader", "bare_start", "bare_reform"):
            print(f"  per agent, {what}: {getattr(done, what).per_agent(nodes)}", flush=True)
    torch = {nodes: measure_torch(nodes) for nodes in args.torch_sizes}
    table = rows(rounds, torch, sizes=args.sizes)
    show("rendezvous", table)
    if not args.quick and not all(row.met for row in table):
        sys.exit(1)


if __name__ == "__main__":
    main()
