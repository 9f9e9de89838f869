"""Coordinator: one agent's part in the rendezvous. Joins generations, tells when one is over, guards commits.

Its threads keep the lease (Registration), watch the world key, stand for leader (Election) and lead (Leader). The
agent's own thread calls the methods here; only `start`, `join`, `commit` and `wait_closed` may take time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection

from elastic.clock import SYSTEM_CLOCK, Clock
from elastic.errors import Fenced
from elastic.events import Emit
from elastic.lease import LeasePage
from elastic.rendezvous.arrival import arrive
from elastic.rendezvous.commits import Commits
from elastic.rendezvous.election import Election
from elastic.rendezvous.ending import unheard_end
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
    goes_on_in,
    membership_in,
    regroup_of,
)
from elastic.rendezvous.model import FailureReport, Member, MemberState, Phase, Seat, World, member_from_json
from elastic.rendezvous.naming import NodeName
from elastic.rendezvous.options import RendezvousOptions
from elastic.rendezvous.probe import ProbeListener
from elastic.rendezvous.reaching import Reaching
from elastic.rendezvous.registration import Keeper, Registration
from elastic.rendezvous.waiting import Waiting
from elastic.rendezvous.wish_watch import wished_now
from elastic.rendezvous.world_watch import WorldWatch

__all__ = ["AgentIdentity", "CommitVerdict", "Coordinator", "JobClosed", "Membership", "Regroup"]

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
        self._commits = Commits(
            store, keys=self._keys, agent=identity.agent, clock=clock, on_unknown=self._registration.look
        )
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
        self._waiting = Waiting(
            options=options,
            registration=self._registration,
            watch=self._watch,
            election=self._election,
            reaching=self._reaching,
            members=self.members,
            wish=lambda: wished_now(store, keys=self._keys),
            check=self.check,
            clock=clock,
        )
        self._generation = 0
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
    def seated(self) -> bool:
        """Whether no world is at work without this agent, as far as it knows."""
        world, joined = self._watch.world, self._generation
        if world is None or world.phase is not Phase.FORMED or world.generation <= joined:
            return True
        return goes_on_in(world, agent=self.identity.agent, after=joined)

    @property
    def lease(self) -> int:
        """The id of the lease that this agent's keys live by."""
        return self._registration.member.lease

    @property
    def lease_valid_until_s(self) -> float:
        """Until when the lease holds for certain, on this coordinator's clock."""
        return self._registration.valid_until_s

    def start(self, *, slots: int | None = None, exporter: str | None = None, ask: bool = True) -> None:
        """Register this agent: it is alive, and with `ask` it asks for a generation. What is given replaces the
        identity's.

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
            if ask and not self.identity.named:
                self._registration.note(state=MemberState.JOINING, store_port=self._hosting.offer())
            limit_s = self.options.connect_timeout_s
            self._waiting.seen_closed = arrive(
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
        limit_s = self.options.join_timeout_s if timeout_s is None else timeout_s
        world = self._waiting.seat(
            after=self._generation,
            limit_s=limit_s + (self.options.holders_wait_s if report is not None and report.lacks else 0.0),
            interrupted=interrupted,
            at_once=report is not None,
        )
        return self._enter(world)

    def ask(self, report: FailureReport | None = None) -> None:
        """The first half of `join`: ask for a generation, and go on. `enter` is the other half.

        Where a seat is there already, nothing is said but that this agent's own workers have failed."""
        self._asked_s = self._clock.monotonic_s()
        if report is not None:
            report = dataclasses.replace(report, text=report.text[-_LONGEST_TEXT:], generation=self._generation)
        if (report is None or not report.is_own) and self._waiting.goes_on(after=self._generation):
            return
        self._registration.publish(
            state=MemberState.JOINING,
            ended_generation=self._generation,
            last_generation=self._generation,
            report=report,
            store_port=self._hosting.offer(),
        )

    def enter(self) -> Membership | None:
        """The generation asked for, once it is there. Does not wait for it. Raises JobClosed, StoreError."""
        world = self._waiting.seated(after=self._generation)
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
            self._election.suspect(agents, among=self._waiting.nodes)

    def commit(self, value: str, *, generation: int | None = None, timeout_s: float = 10.0) -> CommitVerdict:
        """Write the commit record, if this agent's generation is the newest one and its member key is there.

        `generation`: that of who asks, where that may have ended meanwhile: a worker that stays outlives its own.
        """
        left_s = self.lease_valid_until_s - self._clock.monotonic_s()  # beyond it nothing can be granted
        world = self._joined
        if world is not None and generation is not None and generation != world.generation:
            reason = f"generation {generation} asks, and this agent has joined generation {world.generation}"
            return CommitVerdict(granted=False, reason=reason, stale=generation < world.generation)
        return self._commits.write(value, world=world, timeout_s=min(timeout_s, max(0.0, left_s)))

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
        return self._waiting.end_of_job(timeout_s=timeout_s) or unheard_end(timeout_s)

    def _enter(self, world: World) -> Membership:
        seat = world.seat_of(self.identity.agent)
        assert seat is not None  # _await_seat has looked
        self._generation, self._joined = world.generation, world
        self._lost_world.remember(world)
        self._registration.note(last_generation=world.generation, report=None, unreachable=())
        seconds = self._clock.monotonic_s() - max(self._asked_s, self._waiting.rested_until_s)
        store = self._hosting.enter(hosts=seat.group_rank == 0)
        if seat.group_rank == 0:
            # A world that is formed directly needs a store that was not in use, most likely here again.
            self._registration.say_soon(store_port=self._hosting.offer())
        return membership_in(world, seat=seat, seconds=seconds, store=store, leader=self.is_leader)

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
