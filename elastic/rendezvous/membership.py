"""Membership: what a coordinator is given and what it hands out."""

from __future__ import annotations

from collections.abc import Callable, Sized
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from elastic.errors import Preempted, StoreError
from elastic.events import Cause
from elastic.rendezvous.model import Member, MemberState, Phase, Seat, World
from elastic.rendezvous.wish import Wish


@dataclass(frozen=True, kw_only=True)
class AgentIdentity:
    """Who an agent is. `agent` is new with each process; `node` serves for order and for people.

    `address` is where other nodes reach this one; `slots` its number of workers; `root_generation` the newest
    generation that the checkpoint root has seen. `named`: the node's name was given, so that no other may bear it.
    `numerics` tells how its workers compute, where that must be alike; `speaks`, whom it understands (versions.py);
    `launch`, whom it was started with (launched.py).
    """

    agent: str
    node: str
    address: str
    slots: int = 1
    exporter: str = ""
    fingerprint: str = ""
    numerics: str = ""
    speaks: str = ""
    launch: str = ""
    root_generation: int = 0
    named: bool = False


class HostedStore(Protocol):
    """A store for workers that listens on this agent. `store` is what torch's parts of the agent are given."""

    @property
    def port(self) -> int: ...

    @property
    def store(self) -> Any: ...

    def close(self) -> None:
        """Listen no more, once nobody else holds `store`."""
        ...


class StoreHost(Protocol):
    """Where an agent gets its stores from."""

    def open(self, address: str) -> HostedStore:
        """A store for the next generation, that listens on this address only."""
        ...

    def private(self) -> Any:
        """A store of this process alone, for an agent that hosts none."""
        ...


class NoStores:
    """For coordinators whose workers need no store."""

    port = 0
    store = None

    def open(self, address: str) -> HostedStore:
        """Nothing listens."""
        return self

    def private(self) -> Any:
        """None."""
        return None

    def close(self) -> None:
        """Nothing to do."""


@dataclass(frozen=True, kw_only=True)
class Membership:
    """This agent's place in a generation. `seconds` from asking to agreed.

    `store`: on the agent of seat 0 the one that listens at `store_address`:`store_port` until this agent joins another
    generation or stops; elsewhere a private one. Agents exchange nothing through it; workers connect to the former.
    """

    generation: int
    world: World
    seat: Seat
    store_address: str
    store_port: int
    seconds: float
    store: Any
    leader: bool


def membership_in(world: World, *, seat: Seat, seconds: float, store: Any, leader: bool) -> Membership:
    """The place of an agent that has this seat."""
    return Membership(
        generation=world.generation,
        world=world,
        seat=seat,
        store_address=world.store_address,
        store_port=world.store_port,
        seconds=seconds,
        store=store,
        leader=leader,
    )


@dataclass(frozen=True, kw_only=True)
class Regroup:
    """Why this agent's generation is over. `planned`: workers finish their step first.

    `generation` is the newest one known; `left_out`: it was formed without this agent. `closed`: the job is over.
    `ends`: workers save and end, since the job rests or there will be no seat for this agent.
    """

    cause: Cause
    planned: bool
    reason: str
    generation: int
    left_out: bool = False
    closed: bool = False
    ends: bool = False


def regroup_of(world: World | None, *, agent: str, generation: int) -> Regroup | None:
    """Why the generation that an agent is in is over, from the newest world; None while it is not. Pure."""
    if world is None:
        reason = "the store has lost this job's world"
        return Regroup(cause=Cause.NODE_LOST, planned=False, reason=reason, generation=generation)
    closed = world.phase is Phase.CLOSED
    if goes_on_in(world, agent=agent, after=generation):
        return Regroup(cause=world.cause, planned=False, reason=world.reason, generation=world.generation)
    seat = world.seat_of(agent)
    if world.generation != generation or seat is None:
        return Regroup(
            cause=world.cause,
            planned=False,
            reason=f"generation {world.generation} was formed without this agent: {world.reason}",
            generation=world.generation,
            left_out=True,
            closed=closed,
        )
    if world.phase is Phase.FORMED:
        return None
    no_seat = world.cause is Cause.SCALED and world.room <= seat.group_rank
    return Regroup(
        cause=world.cause,
        planned=world.planned,
        reason=world.reason,
        generation=generation,
        closed=closed,
        ends=world.planned and (no_seat or world.cause is Cause.PAUSED),
    )


def goes_on_in(world: World, *, agent: str, after: int) -> bool:
    """Whether a newer world has a seat for this agent, or may have one that it does not know yet. Pure."""
    if world.phase is not Phase.FORMED or world.generation <= after:
        return False
    return world.seat_of(agent) is not None or (world.apart is not None and not world.seats)


@dataclass(frozen=True, kw_only=True)
class CommitVerdict:
    """Whether a commit record was written. Not granted: it was not, or nobody can tell (the store was away).

    `stale`: it was not and never will be, since a newer generation exists.
    """

    granted: bool
    reason: str
    stale: bool = False


def first_member(identity: AgentIdentity) -> Member:
    """What an agent's key says before it asks for anything; ports and lease follow."""
    return Member(
        agent=identity.agent,
        node=identity.node,
        address=identity.address,
        slots=identity.slots,
        probe_port=0,
        store_port=0,
        lease=0,
        state=MemberState.IDLE,
        exporter=identity.exporter,
        fingerprint=identity.fingerprint,
        numerics=identity.numerics,
        speaks=identity.speaks,
        launch=identity.launch,
        root_generation=identity.root_generation,
    )


def too_few_came(members: Callable[[], Sized], *, wish: Callable[[], Wish], least: int, limit_s: float) -> Preempted:
    """What an agent ends with that waited for others in vain. `members`: those that are here, and `wish`: what a person
    wants in the place of `least`, both asked from the store."""
    here, remedy = "too few", "--nnodes=MIN:MAX"
    with suppress(StoreError):
        here = str(len(members()))
        if (wanted := wish()).max_nodes:
            least, remedy = wanted.min_nodes, "`elastic scale MIN:MAX`, which set this minimum"
    return Preempted(
        f"{here} of at least {least} nodes came within {limit_s:g} s; start the others, or allow fewer with {remedy}"
    )
