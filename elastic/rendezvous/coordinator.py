"""Coordinator: one agent's part in the rendezvous. Joins generations, tells when one is over, guards commits.

Its threads keep the lease (Registration), watch the world key, stand for leader (Election) and lead (Leader). The
agent's own thread calls the methods here; only `start`, `join`, `commit` and `wait_closed` may take time.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection

from elastic.clock import SYSTEM_CLOCK, Clock
from elastic.errors import ElasticError, Fenced, Preempted, StoreError, StoreUnavailable
from elastic.events import Emit, Event, Outcome
from elastic.rendezvous.commits import Commits
from elastic.rendezvous.election import Election
from elastic.rendezvous.ending import ending_of
from elastic.rendezvous.errors import JobClosed
from elastic.rendezvous.keys import Keys
from elastic.rendezvous.kv import KeyValueStore
from elastic.rendezvous.leader import Leader
from elastic.rendezvous.membership import (
    AgentIdentity,
    CommitVerdict,
    HostedStore,
    Membership,
    NoStores,
    Regroup,
    StoreHost,
    first_member,
    regroup_of,
)
from elastic.rendezvous.model import (
    FailureReport,
    Member,
    MemberState,
    Phase,
    Seat,
    World,
    member_from_json,
    world_from_json,
)
from elastic.rendezvous.naming import NodeName
from elastic.rendezvous.options import RendezvousOptions
from elastic.rendezvous.probe import ProbeListener
from elastic.rendezvous.reaching import Reaching
from elastic.rendezvous.registration import Registration
from elastic.rendezvous.world_watch import WorldWatch

__all__ = ["AgentIdentity", "CommitVerdict", "Coordinator", "JobClosed", "Membership", "Regroup"]

_POLL_S = 0.1
_RETRY_S = 0.3
_LONGEST_SUSPECT_S = 5.0
# etcd refuses requests above 1.5 MB; a traceback's end is what tells.
_LONGEST_TEXT = 20_000


def _ignore(event: Event) -> None:
    """The default for `emit`."""


def _nothing() -> None:
    """The default for `on_change`."""


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
        on_change: Callable[[], None] = _nothing,
        emit: Emit = _ignore,
    ) -> None:
        self.options, self.identity = options, identity
        self._store, self._clock = store, clock
        self._keys = Keys.of(prefix=options.prefix, job_id=options.job_id)
        self._stores, self._on_change = stores or NoStores(), on_change
        self._probes: ProbeListener | None = None
        self._registration = Registration(
            store,
            keys=self._keys,
            member=first_member(identity),
            ttl_s=options.ttl_s,
            clock=clock,
            on_registered=self._registered,
        )
        self._leader = Leader(store, keys=self._keys, limits=options.limits, clock=clock, emit=emit)
        self._election = Election(store, keys=self._keys, agent=identity.agent, lead=self._leader.lead)
        self._commits = Commits(store, keys=self._keys, agent=identity.agent, clock=clock)
        self._watch = WorldWatch(store, key=self._keys.world, on_change=self._world_changed)
        self._name = NodeName(store, keys=self._keys, node=identity.node, agent=identity.agent)
        self._reaching = Reaching(member=lambda: self._registration.member, report=self.report_unreachable, clock=clock)
        self._generation = 0
        self._seen_closed = 0
        self._next_store: HostedStore | None = None
        self._current_store: HostedStore | None = None

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
        """Register this agent: it is alive, and asks for nothing yet. What is given replaces the identity's.

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
            self._connect()
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
        for hosted in (self._next_store, self._current_store):
            if hosted is not None:
                hosted.close()
        self._next_store = self._current_store = None

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
            `interrupted` said so. StoreUnavailable: the store did not answer for that long.
        """
        started_s = self._clock.monotonic_s()
        if self._next_store is None:
            self._next_store = self._stores.open(self.identity.address)
        self._registration.publish(
            state=MemberState.JOINING,
            ended_generation=self._generation,
            last_generation=self._generation,
            report=None if report is None else dataclasses.replace(report, text=report.text[-_LONGEST_TEXT:]),
            store_port=self._next_store.port,
        )
        world = self._await_seat(
            limit_s=self.options.join_timeout_s if timeout_s is None else timeout_s,
            interrupted=interrupted,
            suspect_s=0.0 if report is not None else self.options.suspect_s,
        )
        return self._enter(world, seconds=self._clock.monotonic_s() - started_s)

    def regroup(self) -> Regroup | None:
        """Whether this agent's generation is over, and why. Never blocks, never raises."""
        if not self._generation or not self._watch.known:
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
            self._election.suspect(agents)

    def commit(self, value: str, *, timeout_s: float = 10.0) -> CommitVerdict:
        """Write the commit record, if this agent's generation is the newest one and its member key is there."""
        return self._commits.write(value, generation=self._generation, timeout_s=timeout_s)

    def commit_record(self) -> str | None:
        """The last commit record. Raises StoreUnavailable."""
        return self._commits.read()

    def members(self) -> tuple[Member, ...]:
        """All live members, read from the store. Raises StoreUnavailable."""
        return tuple(member_from_json(entry.value) for entry in self._store.range(self._keys.members).entries)

    def world(self) -> World | None:
        """The newest world known."""
        return self._watch.world

    def wait_closed(self, timeout_s: float | None = None) -> JobClosed:
        """How the job ended, after `done`. Without news for `timeout_s` it succeeded: the final state is durable."""
        self._watch.wait(lambda: self._closed() is not None, timeout_s=timeout_s)
        heard = self._closed()
        reason = f"done here; the end of the job was not heard of within {timeout_s} s"
        return heard or JobClosed(outcome=Outcome.SUCCEEDED, exit_code=0, reason=reason)

    # -- below: parts of the above

    def _connect(self) -> None:
        deadline_s = self._clock.monotonic_s() + self.options.connect_timeout_s
        while True:
            try:
                entry = self._store.get(self._keys.world)
                world = world_from_json(entry.value) if entry else None
                if world is not None and world.phase is Phase.CLOSED:
                    self._seen_closed = world.generation
                    self._registration.note(seen_closed=world.generation)
                self._registration.start()
                return
            except StoreUnavailable:
                if self._clock.monotonic_s() >= deadline_s:
                    raise
                self._clock.sleep(_RETRY_S)

    def _await_seat(self, *, limit_s: float, interrupted: Callable[[], bool], suspect_s: float) -> World:
        deadline_s = self._clock.monotonic_s() + limit_s
        suspect_at_s = self._clock.monotonic_s() + suspect_s
        pause_s = max(suspect_s, self.options.suspect_s)
        while True:
            self._watch.wait(self._settled, timeout_s=_POLL_S if suspect_s else 0.0)
            if (world := self._seated()) is not None:
                return world
            now_s = self._clock.monotonic_s()
            if interrupted():
                raise Preempted("asked to leave while waiting for a generation")
            if (running := self._watch.world) is not None and running.phase is Phase.FORMED:
                deadline_s = now_s + limit_s
                self._reaching.try_again(running)
            if now_s >= deadline_s:
                raise self._timed_out(limit_s)
            if now_s >= suspect_at_s:
                self._election.suspect()
                suspect_s, suspect_at_s = pause_s, now_s + pause_s
                pause_s = min(2 * pause_s, _LONGEST_SUSPECT_S)

    def _settled(self) -> bool:
        return self._closed() is not None or self._seat_of(self._watch.world) is not None

    def _seated(self) -> World | None:
        """The world that this agent waits for, if it is there. Raises JobClosed, Fenced."""
        self.check()
        self._watch.check()
        if (closed := self._closed()) is not None:
            raise closed
        world = self._watch.world
        return world if self._seat_of(world) is not None else None

    def _seat_of(self, world: World | None) -> Seat | None:
        if world is None or world.phase is not Phase.FORMED or world.generation <= self._generation:
            return None
        return world.seat_of(self.identity.agent)

    def _enter(self, world: World, *, seconds: float) -> Membership:
        seat = world.seat_of(self.identity.agent)
        assert seat is not None  # _await_seat has looked
        self._generation = world.generation
        self._registration.note(last_generation=world.generation, report=None, unreachable=())
        if self._current_store is not None:
            self._current_store.close()
            self._current_store = None
        if seat.group_rank == 0:
            self._current_store, self._next_store = self._next_store, None
        return Membership(
            generation=world.generation,
            world=world,
            seat=seat,
            store_address=world.store_address,
            store_port=world.store_port,
            seconds=seconds,
            store=self._stores.private() if self._current_store is None else self._current_store.store,
            leader=self.is_leader,
        )

    def _closed(self) -> JobClosed | None:
        return ending_of(self._watch.world, agent=self.identity.agent, seen_closed=self._seen_closed)

    def _timed_out(self, limit_s: float) -> ElasticError:
        if (trouble := self._registration.trouble) is not None:
            return trouble
        here = "too few"
        with contextlib.suppress(StoreError):
            here = str(len(self.members()))
        return Preempted(
            f"{here} of at least {self.options.min_nodes} nodes came within {limit_s:g} s; start the others, or allow "
            "fewer with --nnodes=MIN:MAX"
        )

    def _registered(self) -> None:
        if self.identity.named:
            self._name.claim(self.lease)
            if self._name.taken:
                self._on_change()
        self._leader.reconsider()
        self._election.stand_again()

    def _world_changed(self) -> None:
        self._leader.world_changed()
        self._on_change()
