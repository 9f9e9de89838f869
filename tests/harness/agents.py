"""Agents without workers: coordinators on one store, each in a thread that joins, works and joins again."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable

from elastic.errors import ElasticError
from elastic.events import Cause, Event
from elastic.rendezvous.coordinator import Coordinator
from elastic.rendezvous.errors import JobClosed
from elastic.rendezvous.kv import KeyValueStore
from elastic.rendezvous.membership import AgentIdentity, Membership, Regroup
from elastic.rendezvous.model import FailureReport
from elastic.rendezvous.options import RendezvousOptions

PEER_LOST = FailureReport(cause=Cause.PEER_LOST, rank=0, step=1, signature="", committed_steps=1)


class FakeStore:
    """A hosted store that only knows whether it is open."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.store = self
        self.is_open = True

    def close(self) -> None:
        self.is_open = False


class FakeStores:
    """Opens fake stores, each with a port of its own."""

    def __init__(self) -> None:
        self._ports = itertools.count(20000)

    def open(self, address: str) -> FakeStore:
        return FakeStore(next(self._ports))

    def private(self) -> None:
        return None


class FakeAgent:
    """Joins, then waits for a regroup or an order; both make it join again."""

    def __init__(
        self,
        store: KeyValueStore,
        *,
        node: str,
        options: RendezvousOptions,
        news: threading.Condition,
        slots: int = 1,
        named: bool = False,
        numerics: str = "",
        speaks: str = "",
        launch: str = "",
    ) -> None:
        identity = AgentIdentity(
            agent=uuid.uuid4().hex,
            node=node,
            address="127.0.0.1",
            slots=slots,
            named=named,
            numerics=numerics,
            speaks=speaks,
            launch=launch,
        )
        self.node, self.store, self._news = node, store, news
        self.coordinator = Coordinator(
            store,
            options=options,
            identity=identity,
            stores=FakeStores(),
            on_change=self._tell,
            emit=self._note,
        )
        self.memberships: list[Membership] = []
        self.regroups: list[Regroup] = []
        self.events: list[Event] = []
        self.ended: ElasticError | None = None
        self._report: FailureReport | None = None
        self._order = ""
        self.holds_on = False
        self.left = False
        self._thread = threading.Thread(target=self._run, name=f"agent-{node}", daemon=True)

    @property
    def generation(self) -> int:
        return self.memberships[-1].generation if self.memberships else 0

    @property
    def ranks(self) -> list[str]:
        """Nodes of the newest generation in rank order."""
        return [seat.node for seat in self.memberships[-1].world.seats]

    def start(self) -> None:
        self.coordinator.start()
        self._thread.start()

    def fail(self, report: FailureReport = PEER_LOST) -> None:
        self._report = report
        self._give("fail")

    def done(self) -> None:
        self._give("done")

    def leave(self) -> None:
        self._give("leave")

    def stop(self) -> None:
        """Leave in order: the keys go at once."""
        self._end(revoke=True)

    def kill(self) -> None:
        """Die: the keys stay until the lease ends, the probe port is closed."""
        self._end(revoke=False)

    def _end(self, *, revoke: bool) -> None:
        self._give("end")
        if self._thread.ident is not None:
            self._thread.join()
        self.coordinator.stop(revoke=revoke)

    def _give(self, order: str) -> None:
        with self._news:
            self._order = order
            self._news.notify_all()

    def _tell(self) -> None:
        with self._news:
            self._news.notify_all()

    def _note(self, event: Event) -> None:
        self.events.append(event)
        self._tell()

    def _run(self) -> None:
        try:
            while self._order != "end":
                membership = self.coordinator.join(self._report, interrupted=lambda: self._order == "end")
                with self._news:
                    self.memberships.append(membership)
                    self._report = None
                    self._news.notify_all()
                self._work()
                if self.left:
                    self.coordinator.stop()
                    return
        except ElasticError as error:
            with self._news:
                self.ended = error
                self._news.notify_all()

    def _work(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._order or (self._over() is not None and not self.holds_on))
                order, self._order = self._order, self._order if self._order == "end" else ""
            if order == "done":
                self.coordinator.done()
                raise self.coordinator.wait_closed(10)
            if order == "leave":
                self.coordinator.leave()
                self.left = True
            else:
                if (over := self._over()) is not None:
                    self.regroups.append(over)
                return

    def _over(self) -> Regroup | None:
        self.coordinator.check()
        return self.coordinator.regroup()


class Job:
    """Agents of one job; `store` gives each its own client."""

    def __init__(self, store: Callable[[], KeyValueStore], **options: object) -> None:
        self._store = store
        self.options = RendezvousOptions(
            **{"job_id": "job", "min_nodes": 1, "max_nodes": 4, "ttl_s": 2, "first_wait_s": 0.3} | options
        )
        self.news = threading.Condition()
        self.agents: list[FakeAgent] = []

    def add(self, node: str, **identity: object) -> FakeAgent:
        agent = FakeAgent(self._store(), node=node, options=self.options, news=self.news, **identity)
        self.agents.append(agent)
        agent.start()
        return agent

    def start(self, *nodes: str) -> list[FakeAgent]:
        agents = [self.add(node) for node in nodes]
        self.expect(agents, size=len(nodes))
        return agents

    def until(self, condition: Callable[[], bool], *, what: str, deadline_s: float = 10.0) -> None:
        """Wait for a condition, looking at each piece of news and now and then: not all that happens is told."""
        until_s = time.monotonic() + deadline_s
        with self.news:
            while not self.news.wait_for(condition, timeout=0.1):
                if time.monotonic() < until_s:
                    continue
                states = {a.node: (a.generation, a.coordinator.world(), a.ended) for a in self.agents}
                raise AssertionError(f"{what} did not happen within {deadline_s} s: {states}")

    def expect(self, agents: list[FakeAgent], *, size: int, after: int = 0, deadline_s: float = 10.0) -> int:
        """Wait until all these agents are in one generation of this size, newer than `after`; its number."""

        def agreed() -> bool:
            generations = {agent.generation for agent in agents}
            return len(generations) == 1 and generations.pop() > after and len(agents[0].ranks) == size

        self.until(agreed, what=f"a generation of {size} after {after}", deadline_s=deadline_s)
        return agents[0].generation

    def commits(self, agent: FakeAgent, value: str, *, deadline_s: float = 10.0) -> None:
        """Wait until a commit is granted, trying at each piece of news and now and then."""
        deadline = threading.Timer(deadline_s, lambda: None)
        deadline.start()
        try:
            while not (verdict := agent.coordinator.commit(value, timeout_s=1)).granted:
                assert deadline.is_alive(), f"no commit within {deadline_s} s: {verdict}"
                with self.news:
                    self.news.wait(0.1)
        finally:
            deadline.cancel()
            deadline.join()

    def expect_end(self, agents: list[FakeAgent]) -> list[JobClosed]:
        self.until(lambda: all(agent.ended for agent in agents), what="the end of the job")
        return [agent.ended for agent in agents if isinstance(agent.ended, JobClosed)]

    def close(self) -> None:
        for agent in self.agents:
            agent.stop()
            agent.store.close()
