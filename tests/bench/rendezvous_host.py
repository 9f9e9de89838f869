"""Host process of the rendezvous benchmark: many agents without workers, or bare clients, on one channel to etcd.

Every agent is the real coordinator with its own lease, keys and watches; what waits in a thread of its own in torchrun
is driven by a few threads here. Orders come as JSON lines on stdin, each is answered by one on stdout.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import sys
import threading
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

from elastic.events import Cause
from elastic.rendezvous.coordinator import Coordinator
from elastic.rendezvous.etcd import EtcdStore
from elastic.rendezvous.etcd_watch import EtcdWatch
from elastic.rendezvous.kv import KeyValueStore
from elastic.rendezvous.membership import AgentIdentity
from elastic.rendezvous.model import FailureReport
from elastic.rendezvous.options import RendezvousOptions
from tests.bench.rendezvous_count import Traffic, counting_store

PEER_LOST = FailureReport(cause=Cause.PEER_LOST, rank=0, step=1, signature="", committed_steps=1)
THREADS = 16
LOOK_AGAIN_S = 1.0


class _Fatal:
    """What fails in here ends the process: an agent that is missing would be waited for in vain."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            traceback.print_exception(error)
            os._exit(1)


class Pool:
    """A few threads that do what is queued."""

    def __init__(self, count: int = THREADS) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        for _ in range(count):
            threading.Thread(target=self._run, daemon=True).start()

    def put(self, task: Callable[[], None]) -> None:
        self._queue.put(task)

    def _run(self) -> None:
        while True:
            task = self._queue.get()
            with _Fatal():
                task()


class Agent:
    """Starts, joins, and joins again whenever its generation is over: a worker that ends at once."""

    def __init__(self, store: KeyValueStore, *, node: str, options: RendezvousOptions, host: Host) -> None:
        identity = AgentIdentity(agent=uuid.uuid4().hex, node=node, address="127.0.0.1", slots=8)
        self._host, self._lock = host, threading.Lock()
        self._asking = False
        self._queued = False
        self.generation = 0
        self.alive = True
        self.coordinator = Coordinator(store, options=options, identity=identity, on_change=self._changed)

    def start(self) -> None:
        self.coordinator.start()
        self._asking = True
        self.coordinator.ask()
        self._look()

    def kill(self) -> int:
        """Die: the port is closed, the keys stay until the lease ends. Its id."""
        self.alive = False
        self.coordinator.stop(revoke=False)
        return self.coordinator.lease

    def look_again(self) -> None:
        """What the loop of a waiting agent does now and then: a read that failed is tried again."""
        world = self.coordinator.world()
        if self.alive and world is not None and world.generation > self.generation:
            self._changed()

    def _changed(self) -> None:
        if not self._queued:
            self._queued = True
            self._host.pool.put(self._look)

    def _look(self) -> None:
        self._queued = False
        with self._lock:
            if not self.alive:
                return
            if not self._asking and self.coordinator.regroup() is not None:
                self.coordinator.ask(PEER_LOST)
                self._asking = True
            if self._asking and (membership := self.coordinator.enter()) is not None:
                self._asking = False
                self.generation = membership.generation
                self._host.arrived(self.generation, membership.world.reason)


class Host:
    """All agents or clients of this process."""

    def __init__(self, *, job: str, endpoint: str, nodes: int, first: int, count: int, ttl_s: int) -> None:
        self.options = RendezvousOptions(
            job_id=job, min_nodes=max(1, nodes - 8), max_nodes=nodes, endpoints=(endpoint,), ttl_s=ttl_s
        )
        self.traffic = Traffic()
        self.store: EtcdStore = counting_store(self.options, traffic=self.traffic)
        self.pool = Pool()
        self._news = threading.Condition()
        self._arrived_s = 0.0
        self._reason = ""
        self._heard = 0
        self._entered: Counter[int] = Counter()
        self._alive = count
        names = [f"node{number}" for number in range(first, first + count)]
        self.agents = [Agent(self.store, node=node, options=self.options, host=self) for node in names]
        self._leases: list[int] = []
        # In reality each agent has a process of its own: thousands of others' objects are no load on its collector.
        gc.disable()
        self._bare_watches: list[EtcdWatch] = []

    def arrived(self, generation: int, reason: str) -> None:
        with self._news:
            self._arrived_s, self._reason = time.monotonic(), reason
            self._entered[generation] += 1
            # Only the last one is waited for; the others wake nobody.
            if self._entered[generation] >= self._alive:
                self._news.notify_all()

    def start(self) -> dict[str, Any]:
        for agent in self.agents:
            self.pool.put(agent.start)
        return self.formed(after=0)

    def formed(self, after: int, limit_s: float = 100.0) -> dict[str, Any]:
        """Wait until every agent that lives has entered one generation later than `after`."""

        def all_here() -> bool:
            return any(count >= self._alive for generation, count in self._entered.items() if generation > after)

        until_s = time.monotonic() + limit_s
        with self._news:
            self._alive = sum(agent.alive for agent in self.agents)
            while not (done := self._news.wait_for(all_here, timeout=LOOK_AGAIN_S)) and time.monotonic() < until_s:
                for agent in self.agents:
                    agent.look_again()
            return {
                "formed": done,
                "at_s": self._arrived_s,
                "generation": max(agent.generation for agent in self.agents),
                "reason": self._reason[:200],
                "threads": threading.active_count(),
            }

    def leader(self) -> dict[str, Any]:
        return {"leader": next((n for n, each in enumerate(self.agents) if each.coordinator.is_leader), None)}

    def kill(self, number: int) -> dict[str, Any]:
        return {"lease": self.agents[number].kill()}

    def count(self) -> dict[str, Any]:
        return {"traffic": self.traffic.take(), "cpu_s": time.process_time()}

    def bare_start(self) -> dict[str, Any]:
        """One lease, one leased key and one watch for each agent that there would be."""
        self._all(self._bare_start)
        return {"at_s": time.monotonic()}

    def bare_puts(self) -> dict[str, Any]:
        """One write of the leased key each."""
        leases = list(self._leases)
        self._all(lambda: self.store.put(f"/bare/{leases.pop()}", "x" * 400))
        return {"at_s": time.monotonic()}

    def bare_fan_out(self) -> dict[str, Any]:
        """Wait until every watch has heard of the next write of the one key."""
        count = len(self.agents)
        with self._news:
            self._news.wait_for(lambda: self._heard >= count, timeout=60)
            self._heard -= count
        return {"at_s": time.monotonic()}

    def bare_end(self) -> dict[str, Any]:
        """Leave only the channel."""
        while self._bare_watches:
            self._bare_watches.pop().cancel()
        self._all(lambda: self.store.revoke(self._leases.pop()))
        return {"done": True}

    def _bare_start(self) -> None:
        lease = self.store.grant(self.options.ttl_s)
        self.store.put(f"/bare/{lease}", "x" * 400, lease=lease)
        self._bare_watches.append(
            self.store.watch("/bare-world", since=1, on_update=lambda _u: self._hear(), on_break=lambda _r: None)
        )
        self._leases.append(lease)

    def _hear(self) -> None:
        with self._news:
            self._heard += 1
            if self._heard >= len(self.agents):
                self._news.notify_all()

    def _all(self, task: Callable[[], object]) -> None:
        """Do it once for each agent, by the pool."""
        count, left = len(self.agents), [len(self.agents)]

        def do() -> None:
            task()
            with self._news:
                left[0] -= 1
                if left[0] == 0:
                    self._news.notify_all()

        for _ in range(count):
            self.pool.put(do)
        with self._news:
            assert self._news.wait_for(lambda: left[0] == 0, timeout=100)


def main() -> None:
    """Do what stdin says until it ends."""
    host = Host(**json.loads(sys.argv[1]))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(getattr(host, order.pop("do"))(**order)), flush=True)


if __name__ == "__main__":
    main()
