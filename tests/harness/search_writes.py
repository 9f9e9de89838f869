"""Writes of a small world: what arrives at its store, whether that lets it pass, and what may never have passed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from elastic.rendezvous import machine
from elastic.rendezvous.fences import commit_fence, restore_fence, world_fence, world_write
from elastic.rendezvous.kv import Compare, Delete, Entry, Op, Put
from elastic.rendezvous.model import Member
from elastic.rendezvous.verdict import Close, Evict, Form, Open
from elastic.rendezvous.view import LeaderView, Limits, observe
from elastic.rendezvous.wish import NO_WISH, Wish
from tests.harness.search_state import KEYS, NAMES, Asked, Pending, Registered, State, holds


class Violation(AssertionError):
    """What the protocol promises never to happen has happened."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the protocol does at each seam; a mutant takes one thing out."""

    limits: Limits = field(default_factory=lambda: Limits(min_nodes=1, max_nodes=3, first_wait_s=1.0))
    world_fence: Callable[..., list[Compare]] = world_fence
    world_write: Callable[..., list[Op]] = world_write
    commit_fence: Callable[..., list[Compare]] = commit_fence
    restore_fence: Callable[..., list[Compare]] = restore_fence
    decide: Callable[..., object] = field(default=machine.decide)
    observe: Callable[..., LeaderView] = field(default=observe)
    read_after_refusal: bool = True
    reset_after_gap: bool = True
    only_newer: bool = True
    regroup: bool = True
    register_again: bool = True
    says_missed: bool = True
    says_unheard: Callable[[Member], bool] = lambda _member: True
    says_unsaid: bool = True
    knows_since: bool = True
    ends_first: bool = True
    wishes: tuple[Wish, ...] = ()


def put(state: State, place: int, **fields: object) -> State:
    agents = list(state.agents)
    agents[place] = agents[place]._replace(**fields)
    return state._replace(agents=tuple(agents))


def write(state: State, place: int, *, pending: Pending, rules: Rules, answered: bool) -> State:
    """A write arrives at the store, whatever has happened since it was decided. Only one that is `answered` tells its
    sender how it went."""
    store, term = state.store, state.agents[place].term
    verdict = pending.verdict
    if isinstance(verdict, Evict):
        for name, lease in zip(verdict.agents, pending.leases, strict=True):
            found = state.store.members[NAMES.index(name)]
            if found is not None and found.created == lease:
                state = without_keys(state, NAMES.index(name))
        return state
    own = Entry(
        key=KEYS.candidate(NAMES[place]), value="", create_revision=pending.created, mod_revision=pending.created
    )
    fence = rules.world_fence(KEYS, own=own, world_revision=pending.world_revision)
    if not all(holds(store, compare) for compare in fence):
        still = store.members[place] is not None and store.members[place].created == pending.created
        return state if still or not answered else put(state, place, term=None)
    _check_write(state, place, verdict=verdict, pending=pending)
    formed = verdict.world.token if isinstance(verdict, Form) else None
    ops = rules.world_write(KEYS, text="", formed=formed, closed=isinstance(verdict, Close))
    keys = {op.key for op in ops if isinstance(op, Put)}
    revision = store.revision + 1
    store = store._replace(revision=revision, world=verdict.world, world_revision=revision)
    if KEYS.generation in keys:
        store = store._replace(generation=verdict.world.token)
    if any(isinstance(op, Delete) and op.key == KEYS.wish for op in ops):
        store = store._replace(wish=NO_WISH)
    if isinstance(verdict, Close) and store.wish != NO_WISH:
        raise Violation("what was wished of a job outlives it")
    state = state._replace(store=store)
    if formed is not None:
        state = state._replace(newest=max(state.newest, verdict.world.generation), last=formed)
    # The leader reads what it wrote.
    if answered and term is not None:
        state = put(state, place, term=term._replace(world=verdict.world, world_revision=revision))
    return state


def _check_write(state: State, place: int, *, verdict: Open | Form | Close, pending: Pending) -> None:
    world, before = verdict.world, state.store.world
    own = state.store.members[place]
    if isinstance(verdict, Form):
        if world.generation == state.newest and not state.blind:
            raise Violation(f"two worlds of generation {world.generation}")
        if world.generation < state.newest and not state.blind:
            raise Violation(f"generation {world.generation} formed after {state.newest}")
        for seat in world.seats:
            agent = state.agents[NAMES.index(seat.agent)]
            same = agent.joined is not None and agent.joined.token == world.token
            if agent.up and agent.running and not same and not world.direct:
                raise Violation(f"{seat.agent} has a seat in {world.generation} and still runs {agent.generation}")
    if before is not None and world.generation < before.generation:
        raise Violation(f"generation {world.generation} written over {before.generation}")
    if own is None or own.created != pending.created:
        raise Violation(f"{NAMES[place]} leads no more and has written")


def commit(state: State, place: int, *, asked: Asked, rules: Rules) -> State:
    store, name = state.store, NAMES[place]
    fence = rules.commit_fence(KEYS, agent=name, token=asked.token, revision=asked.revision)
    if not all(holds(store, compare) for compare in fence):
        return state
    if asked.token != state.last:
        raise Violation(f"a commit of {asked.token} accepted after {state.last} was formed")
    if store.members[place] is None:
        raise Violation(f"a commit of {name} accepted, whose lease has ended")
    if asked.ahead < 1:
        raise Violation(f"a commit of {name} that arrived late has taken the record back")
    revision = store.revision + 1
    agents = [
        agent._replace(
            commit=agent.commit and agent.commit._replace(ahead=0), late=agent.late and agent.late._replace(ahead=0)
        )
        for agent in state.agents
    ]
    return state._replace(agents=tuple(agents), store=store._replace(revision=revision, commit_revision=revision))


def restore(state: State, place: int, *, rules: Rules) -> State:
    """The world that the store has lost is written again, by the agent of its first seat."""
    world, store = state.agents[place].joined, state.store
    assert world is not None
    if not all(holds(store, compare) for compare in rules.restore_fence(KEYS)):
        return state
    if store.world is not None:
        raise Violation(f"generation {world.generation} restored over {store.world.generation}")
    if world.generation < state.newest and not state.blind:
        raise Violation(f"generation {world.generation} restored after {state.newest}")
    revision = store.revision + 1
    store = store._replace(revision=revision, world=world, world_revision=revision, generation=world.token)
    return state._replace(store=store, last=world.token)


def with_keys(state: State, place: int, found: Registered | None) -> State:
    members = list(state.store.members)
    members[place] = found
    return state._replace(store=state.store._replace(members=tuple(members)))


def without_keys(state: State, place: int) -> State:
    return with_keys(state, place, None)
