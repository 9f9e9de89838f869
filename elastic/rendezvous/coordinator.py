"""Coordinator: one agent's part in the rendezvous. Joins generations, tells when one is over, guards commits.

Its threads keep the lease (Registration), watch the world key, stand for leader (Election) and lead (Leader). The
agent's own thread calls the methods here; only `start`, `join`, `commit` and `wait_closed` may take time.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection

from elastic.clock import SYSTEM_CLOCK, Clock
from elastic.errors import Fenced, Preempted, StoreUnavailable
from elastic.events import Emit
from elastic.lease import LeasePage
from elastic.rendezvous import alike
from elastic.rendezvous.arrival import arrive
from elastic.rendezvous.commits import Commits
from elastic.rendezvous.election import Election
from elastic.rendezvous.ending import ending_of, missed_generation, unheard_end
from elastic.rendezvous.errors import JobClosed
from elastic.rendezvous.hosting import Hosting
from elastic.rendezvous.keys import Keys
from elastic.rendezvous.kv import Entry, KeyValueStore
from elastic.rendezvous.leader import Leader
from elastic.rendezvous.lost_world import LostWorld
from elastic.rendezvous.membership import (
    AgentIdentity,
    CommitVerdict,
    Membership,
    NoStores,
    Regroup,
    StoreHost,
    first_member,
    membership_in,
    regroup_of,
    too_few_came,
)
from elastic.rendezvous.model import FailureReport, Member, MemberState, Phase, Seat, World, member_from_json
from elastic.rendezvous.naming import NodeName
from elastic.rendezvous.options import RendezvousOptions
from elastic.rendezvous.patience import Patience
from elastic.rendezvous.probe import ProbeListener
from elastic.rendezvous.reaching import Reaching
from elastic.rendezvous.registration import Keeper, Registration
from elastic.rendezvous.world_watch import WorldWatch

__all__ = ["AgentIdentity", "CommitVerdict", "Coordinator", "JobClosed", "Membership", "Regroup"]

_POLL_S = 0.1
# etcd refuses requests above 1.5 MB; a traceback's end is what tells.
_LONGEST_TEXT = 20_000


class Coordinator:
    """`on_change` is called from a watch's thread after the world changed, without locks; it must not block."""

    def __init__(
        self,
        store: KeyValueStore,
        *,
        options: RendezvousOptions,
        identity: AgentIdentity,
        stores: StoreHost | None = None,
        clock: Clock = SYSTEM_CLOCK,
        on_change: Callable[[], None] = lambda: None,
        emit: Emit = lambda event: None,
        page: LeasePage | None = None,
        keeper: Keeper | None = None,
    ) -> None:
        self.options, self.identity = options, identity
        self._store, self._clock = store, clock
        self._keys = Keys.of(prefix=options.prefix, job_id=options.job_id)
        self._hosting = Hosting(stores or NoStores(), address=identity.address)
        self._on_change, self._page = on_change, page
        self._probes: ProbeListener | None = None
        self._registration = Registration(
            store,
            keys=self._keys,
            member=first_member(identity),
            ttl_s=options.ttl_s,
            clock=clock,
            on_registered=self._registered,
            on_renewed=lambda: self._lost_world.mend(self._on_change),
            page=page,
            keeper=keeper,
        )
        self._leader = Leader(store, keys=self._keys, limits=options, clock=clock, emit=emit)
        self._election = Election(store, keys=self._keys, agent=identity.agent, lead=self._leader.lead)
        self._commits = Commits(store, keys=self._keys, agent=identity.agent, clock=clock)
        self._lost_world = LostWorld(
            store, keys=self._keys, agent=identity.agent, ttl_s=options.ttl_s, clock=clock, whole=self._leader.whole
        )
        self._watch = WorldWatch(store, keys=self._keys, agent=identity.agent, on_change=self._world_changed)
        self._name = NodeName(store, keys=self._keys, node=identity.node, agent=identity.agent, on_taken=on_change)
        self._reaching = Reaching(
            member=lambda: self._registration.member,
            seats=self.known_seats,
            report=self.report_unreachable,
            clock=clock,
        )
        self._generation = self._seen_closed = 0
        self._joined: World | None = None
        self._asked_s = 0.0

    @property
    def generation(self) -> int:
        """The generation that this agent joined last; 0 before the first."""
        return self._generation

    @property
    def is_leader(self) -> bool:
        """Whether this agent leads, as far as it knows."""
        return self._election.is_leader

    @property
    def lease(self) -> int:
        """The id of the lease that this agent's keys live by."""
        return self._registration.member.lease

    @property
    def lease_valid_until_s(self) -> float:
        """Until when the lease holds for certain, on this coordinator's clock."""
        return self._registration.valid_until_s

    def start(self, *, slots: int | None = None, exporter: str | None = None) -> None:
        """Register this agent: it is alive, and asks for a generation. What is given replaces the identity's.

        One with a name of its own asks only once it has that.

        Raises:
            StoreUnavailable: no endpoint answered within connect_timeout_s.
            StoreRefused: wrong credentials. UsageError: this machine does not have the identity's address.
        """
        try:
            self._probes = ProbeListener(self.identity.agent, address=self.identity.address)
            self._probes.start()
            self._registration.note(
                slots=self.identity.slots if slots is None else slots,
                exporter=self.identity.exporter if exporter is None else exporter,
                probe_port=self._probes.port,
            )
            if not self.identity.named:
                self._registration.note(state=MemberState.JOINING, store_port=self._hosting.offer())
            limit_s = self.options.connect_timeout_s
            self._seen_closed = arrive(
                self._registration, watch=self._watch, keys=self._keys, clock=self._clock, limit_s=limit_s
            )
            self._watch.start()
            self._election.start()
        except BaseException:
            self.stop()
            raise

    def stop(self, *, revoke: bool = True) -> None:
        """End all threads and take this agent out of the job; without `revoke` its keys stay until the lease ends."""
        self._leader.stop()
        self._election.stop()
        self._watch.stop()
        self._registration.stop(revoke=revoke)
        if self._probes is not None:
            self._probes.stop()
        self._hosting.close()

    def join(
        self,
        report: FailureReport | None = None,
        *,
        timeout_s: float | None = None,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> Membership:
        """Ask for a generation newer than the last one joined, and wait for it. The workers must have ended that one.

        `report`: why they did; None in a planned round. A spare waits for as long as the job runs without it.

        Raises:
            JobClosed: the job is over. Preempted: too few nodes came within `timeout_s` (default join_timeout_s), or
            `interrupted` said so. StoreUnavailable: the store did not answer for that long. NumericsDiffer: this node
            would compute other bits than the run.
        """
        self.ask(report)
        world = self._await_seat(
            limit_s=self.options.join_timeout_s if timeout_s is None else timeout_s,
            interrupted=interrupted,
            at_once=report is not None,
        )
        return self._enter(world)

    def ask(self, report: FailureReport | None = None) -> None:
        """The first half of `join`: ask for a generation, and go on. `enter` is the other half."""
        self._asked_s = self._clock.monotonic_s()
        self._registration.publish(
            state=MemberState.JOINING,
            ended_generation=self._generation,
            last_generation=self._generation,
            report=None if report is None else dataclasses.replace(report, text=report.text[-_LONGEST_TEXT:]),
            store_port=self._hosting.offer(),
        )

    def enter(self) -> Membership | None:
        """The generation asked for, once it is there. Does not wait for it. Raises JobClosed, StoreError."""
        world = self._seated()
        return None if world is None else self._enter(world)

    def regroup(self) -> Regroup | None:
        """Whether this agent's generation is over, and why. Never blocks, never raises."""
        if not self._generation or not self._watch.known:
            return None
        if self._watch.world is None and not self._lost_world.given_up:
            return None
        return regroup_of(self._watch.world, agent=self.identity.agent, generation=self._generation)

    def check(self) -> None:
        """Raises Fenced where another agent was given this node's name: this one must go."""
        if self._name.taken:
            raise Fenced(self._name.taken)

    def done(self) -> None:
        """This agent's workers ended well: the final state is durable."""
        self._registration.publish(
            state=MemberState.DONE, ended_generation=self._generation, last_generation=self._generation, report=None
        )

    def leave(self) -> None:
        """This agent is going: the others get a planned round. Its workers take part in their last step as usual."""
        self._registration.publish(state=MemberState.LEAVING)

    def report_unreachable(self, agents: Collection[str]) -> None:
        """This agent cannot reach these others of the generation that it joined last; empty: all again. Ends it.

        Say it before `join`, and anew when it changes while waiting without a seat. Taking a seat takes it back."""
        self._registration.publish(unreachable=tuple(sorted(agents)), unreachable_in=self._generation)
        if agents:
            self._election.suspect(agents, among=self._nodes())

    def commit(self, value: str, *, timeout_s: float = 10.0) -> CommitVerdict:
        """Write the commit record, if this agent's generation is the newest one and its member key is there."""
        left_s = self.lease_valid_until_s - self._clock.monotonic_s()  # beyond it nothing can be granted
        return self._commits.write(value, world=self._joined, timeout_s=min(timeout_s, max(0.0, left_s)))

    def commit_record(self) -> str | None:
        """The last commit record. Raises StoreUnavailable."""
        return self._commits.read()

    def members(self) -> tuple[Member, ...]:
        """All live members, read from the store. Raises StoreUnavailable."""
        return tuple(member_from_json(entry.value) for entry in self._store.range(self._keys.members).entries)

    def world(self) -> World | None:
        """The newest world known."""
        return self._watch.world

    def known_seats(self, world: World) -> tuple[Seat, ...]:
        """The seats of a world that this agent knows, in rank order: all, or of a large one its part."""
        whole = self._leader.whole.like(world)
        return whole.seats if whole is not None else self._watch.neighbours(world)

    def wait_closed(self, timeout_s: float | None = None) -> JobClosed:
        """How the job ended, after `done`. Without news for `timeout_s` it succeeded: the final state is durable."""
        self._watch.wait(lambda: self._closed() is not None, timeout_s=timeout_s)
        return self._closed() or unheard_end(timeout_s)

    def _await_seat(self, *, limit_s: float, interrupted: Callable[[], bool], at_once: bool) -> World:
        now_s = self._clock.monotonic_s()
        deadline_s, nodes = now_s + limit_s, self._nodes()
        patience = Patience.at(now_s, pause_s=self.options.suspect_s, nodes=nodes, at_once=at_once)
        while True:
            self._watch.wait(self._settled, timeout_s=0.0 if patience.is_due(now_s) else _POLL_S)
            if (world := self._seated()) is not None:
                return world
            now_s = self._clock.monotonic_s()
            if interrupted():
                raise Preempted("asked to leave while waiting for a generation")
            if (newest := self._watch.world) is not None:
                alike.check(self._registration.member, world=newest, members=self.members)
                self._reaching.try_again(newest)
                deadline_s = now_s + limit_s if newest.phase is Phase.FORMED else deadline_s
            if now_s >= deadline_s:
                trouble, least = self._registration.trouble, self.options.min_nodes
                raise trouble or too_few_came(self.members, least=least, limit_s=limit_s)
            if patience.is_due(now_s):
                self._election.suspect(among=nodes)
                patience = patience.after(now_s)

    def _nodes(self) -> int:
        """How many nodes there are, as far as this agent knows."""
        world = self._watch.world
        return max(self.options.min_nodes, world.nodes if world else 0)

    def _settled(self) -> bool:
        seated = self._seat_of(self._watch.world) is not None
        return seated or self._watch.looks_apart or self._closed() is not None

    def _seated(self) -> World | None:
        """The world that this agent waits for, if it is there. What it was given and never saw, it ends: others wait.

        Raises JobClosed, Fenced."""
        self.check()
        self._watch.check()
        with contextlib.suppress(StoreUnavailable):
            self._watch.look()
        if (closed := self._closed()) is not None:
            raise closed
        world = self._watch.world
        if self._seat_of(world) is not None:
            return world
        ended = self._registration.member.ended_generation
        if missed := missed_generation(world, agent=self.identity.agent, ended=ended):
            self._registration.publish(ended_generation=missed)
        return None

    def _seat_of(self, world: World | None) -> Seat | None:
        if world is None or world.phase is not Phase.FORMED or world.generation <= self._generation:
            return None
        return world.seat_of(self.identity.agent)

    def _enter(self, world: World) -> Membership:
        seat = world.seat_of(self.identity.agent)
        assert seat is not None  # _await_seat has looked
        self._generation, self._joined = world.generation, world
        self._lost_world.remember(world)
        self._registration.note(last_generation=world.generation, report=None, unreachable=())
        seconds = self._clock.monotonic_s() - self._asked_s
        store = self._hosting.enter(hosts=seat.group_rank == 0)
        return membership_in(world, seat=seat, seconds=seconds, store=store, leader=self.is_leader)

    def _closed(self) -> JobClosed | None:
        return ending_of(self._watch.world, agent=self.identity.agent, seen_closed=self._seen_closed)

    def _registered(self, after: Entry | None) -> None:
        if self.identity.named:
            self._name.claim(self.lease)
        self._leader.reconsider()
        self._election.stand(after=after)

    def _world_changed(self) -> None:
        if (world := self._watch.world) is not None:
            self._lost_world.found(world)
            if self._page is not None:
                self._page.generation = world.generation
        elif self._lost_world.lost():
            self._registration.look()
        self._leader.world_changed()
        self._on_change()
