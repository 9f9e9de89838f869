"""Steps of a small world: all that can happen next, one thing at a time. What must never happen raises Violation.

The leader's decisions, the compares and the numbers of generations are the product's own code; how agents follow the
world key is told again here, as in Coordinator.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from elastic.events import Cause
from elastic.rendezvous import machine
from elastic.rendezvous.ending import missed_generation
from elastic.rendezvous.fences import commit_fence, world_fence, world_write
from elastic.rendezvous.kv import Compare, Entry, Op, Put
from elastic.rendezvous.model import FailureReport, Member, MemberState, Phase, ProbeResult, World
from elastic.rendezvous.verdict import Close, Evict, Form, Open, Probe, Wait
from elastic.rendezvous.view import LeaderView, Limits, observe, with_probes
from tests.harness.search_state import (
    KEYS,
    NAMES,
    NOW_S,
    UNKNOWN,
    Agent,
    Pending,
    Registered,
    State,
    Store,
    Term,
    aged,
    freeze,
    holds,
    thaw,
)

PEER_LOST = FailureReport(cause=Cause.PEER_LOST, rank=0, step=1, signature="")
FAULTS = ("crash", "lose-lease", "fail", "cut", "delay", "wipe")


class Violation(AssertionError):
    """What the protocol promises never to happen has happened."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the protocol does at each seam; a mutant takes one thing out."""

    limits: Limits = field(default_factory=lambda: Limits(min_nodes=1, max_nodes=3, first_wait_s=1.0))
    world_fence: Callable[..., list[Compare]] = world_fence
    world_write: Callable[..., list[Op]] = world_write
    commit_fence: Callable[..., list[Compare]] = commit_fence
    decide: Callable[..., object] = field(default=machine.decide)
    observe: Callable[..., LeaderView] = field(default=observe)
    read_after_refusal: bool = True
    reset_after_gap: bool = True
    only_newer: bool = True
    regroup: bool = True
    register_again: bool = True
    says_missed: bool = True


Step = tuple[str, State]


def put(state: State, place: int, **fields: object) -> State:
    agents = list(state.agents)
    agents[place] = agents[place]._replace(**fields)
    return state._replace(agents=tuple(agents))


def following(state: State, *, rules: Rules, most_faults: int) -> Iterator[Step]:
    """Every step that can be taken."""
    for place, agent in enumerate(state.agents):
        name = NAMES[place]
        if state.store.members[place] is not None and not agent.up:
            yield f"expire {name}", _without_keys(state, place)
        if agent.flight is not None:
            yield (
                f"land {name}",
                _write(put(state, place, flight=None), place, pending=agent.flight, rules=rules, answered=False),
            )
        if not agent.up:
            continue
        if state.faults < most_faults:
            for what, after in _faults(state, place):
                yield f"{what} {name}", after._replace(faults=state.faults + 1)
        for what, after in (*_follow(state, place, rules=rules), *_lead(state, place, rules=rules)):
            yield f"{what} {name}", after
    if state.faults < most_faults and _known_to_all(state):
        wiped = Store(revision=state.store.revision + 1)
        yield "wipe", state._replace(store=wiped, faults=state.faults + 1)


def _known_to_all(state: State) -> bool:
    """Only then can the store be wiped here: nobody else could tell which numbers have been used."""
    return state.newest > 0 and all(agent.generation == state.newest for agent in state.agents if agent.up)


def _forgotten(state: State) -> bool:
    """The store was wiped and not all have come back: a leader waits for that (first_wait_s) before it decides."""
    missing = any(agent.up and key is None for agent, key in zip(state.agents, state.store.members, strict=True))
    return state.store.world is None and state.newest > 0 and missing


def _faults(state: State, place: int) -> Iterator[Step]:
    agent = state.agents[place]
    if agent.pending is not None and agent.flight is None:
        yield "delay", put(state, place, term=None, pending=None, flight=agent.pending)
    yield "crash", put(state, place, up=False, running=False, token=0, term=None, pending=None)
    if state.store.members[place] is not None:
        yield "lose-lease", _without_keys(state, place)
    if agent.running:
        yield "fail", _ended(state, place, report=PEER_LOST)
        others = [name for name in NAMES if name != NAMES[place]]
        said = dataclasses.replace(agent.member, unreachable=(others[place % 2],), unreachable_in=agent.generation)
        yield "cut", _publish(state, place, said)


def _follow(state: State, place: int, *, rules: Rules) -> Iterator[Step]:
    """What the agent itself does: keep its keys, watch the world, begin and end generations, commit."""
    agent, store = state.agents[place], state.store
    if store.members[place] is None and rules.register_again and not agent.told:
        yield "register", registered(state, place)
    if agent.seen != store.world:
        yield "see", put(state, place, seen=store.world)
    if agent.running and agent.token == 0:
        yield "prepare", put(state, place, token=agent.generation)
    if agent.token:
        yield "commit", _commit(state, place, rules=rules)
    if agent.told or agent.seen == UNKNOWN:
        return
    world = agent.seen
    if world is None or isinstance(world, str):
        if world is None and agent.running and rules.regroup:
            yield "end", _ended(state, place, report=None)
        return
    if world.phase is Phase.CLOSED:
        yield "hear", put(state, place, told=True, running=False)
        return
    missed = missed_generation(world, agent=NAMES[place], ended=agent.member.ended_generation)
    if not agent.running and missed and rules.says_missed:
        yield "miss", _publish(state, place, dataclasses.replace(agent.member, ended_generation=missed))
    over = world.generation != agent.generation or world.phase is not Phase.FORMED
    if agent.running and over and rules.regroup:
        yield "end", _ended(state, place, report=None)
    newer = world.generation > agent.generation if rules.only_newer else world.generation >= agent.generation
    if not agent.running and world.phase is Phase.FORMED and newer and world.seat_of(NAMES[place]):
        yield "enter", _entered(state, place, world)


def _lead(state: State, place: int, *, rules: Rules) -> Iterator[Step]:
    agent, store = state.agents[place], state.store
    if agent.pending is not None:
        sent = put(state, place, pending=None)
        yield "write", _write(sent, place, pending=agent.pending, rules=rules, answered=True)
        return
    term = agent.term
    if term is None:
        own = store.members[place]
        oldest = min((found.created for found in store.members if found), default=0)
        if own is not None and own.created == oldest:
            view = LeaderView(limits=rules.limits, leader=NAMES[place])
            new = Term(own.created, freeze(view), store.world, store.world_revision, store.members)
            yield "stand", put(state, place, term=new)
        return
    if (term.world, term.world_revision) != (store.world, store.world_revision) and rules.read_after_refusal:
        yield "read", put(state, place, term=term._replace(world=store.world, world_revision=store.world_revision))
    members = store.members
    if not rules.reset_after_gap:
        members = tuple(new or old for new, old in zip(store.members, term.members, strict=True))
    if term.members != members:
        yield "members", put(state, place, term=term._replace(members=members))
    if aged(term.view) != term.view:
        yield "time", put(state, place, term=term._replace(view=aged(term.view)))
    if _forgotten(state):
        return
    decided = _decide(state, place, rules=rules)
    if decided != state:
        yield "decide", decided


def _decide(state: State, place: int, *, rules: Rules) -> State:
    """Look and decide; probes are answered at once. A write is left pending."""
    term = state.agents[place].term
    assert term is not None
    blank = LeaderView(limits=rules.limits, leader=NAMES[place])
    members = {name: found.member for name, found in zip(NAMES, term.members, strict=True) if found}
    view = rules.observe(thaw(term.view, blank=blank), world=term.world, members=members, now_s=NOW_S)
    verdict = rules.decide(view, now_s=NOW_S)
    if isinstance(verdict, Probe):
        alive = {name: agent.up for name, agent in zip(NAMES, state.agents, strict=True)}
        results = {name: ProbeResult.ALIVE if alive[name] else ProbeResult.REFUSED for name in verdict.agents}
        view = with_probes(view, results=results, now_s=NOW_S)
        verdict = rules.decide(view, now_s=NOW_S)
    state = put(state, place, term=term._replace(view=freeze(view)))
    if isinstance(verdict, Wait | Probe):
        return state
    leases: tuple[int, ...] = ()
    if isinstance(verdict, Evict):
        known = dict(zip(NAMES, term.members, strict=True))
        leases = tuple(known[name].created for name in verdict.agents)
        verdict = dataclasses.replace(verdict, reason="")
    else:
        world = dataclasses.replace(verdict.world, reason="", failures=_bare(verdict.world))
        verdict = dataclasses.replace(verdict, world=world, reason="")
    return put(state, place, pending=Pending(verdict, term.created, term.world_revision, leases))


def _bare(world: World) -> tuple:
    return tuple(dataclasses.replace(failure, committed_steps=1) for failure in world.failures)


def _write(state: State, place: int, *, pending: Pending, rules: Rules, answered: bool) -> State:
    """A write arrives at the store, whatever has happened since it was decided. Only one that is `answered` tells its
    sender how it went."""
    store, term = state.store, state.agents[place].term
    verdict = pending.verdict
    if isinstance(verdict, Evict):
        for name, lease in zip(verdict.agents, pending.leases, strict=True):
            found = state.store.members[NAMES.index(name)]
            if found is not None and found.created == lease:
                state = _without_keys(state, NAMES.index(name))
        return state
    own = Entry(
        key=KEYS.candidate(NAMES[place]), value="", create_revision=pending.created, mod_revision=pending.created
    )
    fence = rules.world_fence(KEYS, own=own, world_revision=pending.world_revision)
    if not all(holds(store, compare) for compare in fence):
        still = store.members[place] is not None and store.members[place].created == pending.created
        return state if still or not answered else put(state, place, term=None)
    _check_write(state, place, verdict=verdict, pending=pending)
    formed = verdict.world.generation if isinstance(verdict, Form) else None
    ops = rules.world_write(KEYS, text="", formed=None if formed is None else str(formed))
    keys = {op.key for op in ops if isinstance(op, Put)}
    revision = store.revision + 1
    store = store._replace(revision=revision, world=verdict.world, world_revision=revision)
    if KEYS.generation in keys:
        store = store._replace(generation=verdict.world.generation)
    state = state._replace(store=store, newest=max(state.newest, formed or 0))
    # The leader reads what it wrote.
    if answered and term is not None:
        state = put(state, place, term=term._replace(world=verdict.world, world_revision=revision))
    return state


def _check_write(state: State, place: int, *, verdict: Open | Form | Close, pending: Pending) -> None:
    world, before = verdict.world, state.store.world
    own = state.store.members[place]
    if isinstance(verdict, Form):
        if world.generation == state.newest:
            raise Violation(f"two worlds of generation {world.generation}")
        if world.generation < state.newest:
            raise Violation(f"generation {world.generation} formed after {state.newest}")
        for seat in world.seats:
            agent = state.agents[NAMES.index(seat.agent)]
            if agent.up and agent.running:
                raise Violation(f"{seat.agent} has a seat in {world.generation} and still runs {agent.generation}")
    if before is not None and world.generation < before.generation:
        raise Violation(f"generation {world.generation} written over {before.generation}")
    if own is None or own.created != pending.created:
        raise Violation(f"{NAMES[place]} leads no more and has written")


def _commit(state: State, place: int, *, rules: Rules) -> State:
    agent = state.agents[place]
    fence = rules.commit_fence(KEYS, agent=NAMES[place], token=str(agent.token))
    if all(holds(state.store, compare) for compare in fence):
        if agent.token != state.newest:
            raise Violation(f"a commit of generation {agent.token} accepted after {state.newest} was formed")
        if state.store.members[place] is None:
            raise Violation(f"a commit of {NAMES[place]} accepted, whose lease has ended")
    return put(state, place, token=0)


def _entered(state: State, place: int, world: World) -> State:
    agent = state.agents[place]
    if world.generation <= agent.generation:
        raise Violation(f"{NAMES[place]} enters generation {world.generation} after {agent.generation}")
    member = dataclasses.replace(agent.member, last_generation=world.generation, report=None, unreachable=())
    return put(state, place, member=member, generation=world.generation, running=True)


def _ended(state: State, place: int, *, report: FailureReport | None) -> State:
    agent = state.agents[place]
    said = dataclasses.replace(
        agent.member, ended_generation=agent.generation, last_generation=agent.generation, report=report
    )
    return _publish(put(state, place, running=False), place, said)


def _publish(state: State, place: int, said: Member) -> State:
    state = put(state, place, member=said)
    found = state.store.members[place]
    if found is None:
        return state
    return _with_keys(state, place, found._replace(member=said))


def registered(state: State, place: int) -> State:
    """A new lease, both keys written under it; an agent that leads stands again."""
    revision = state.store.revision + 1
    state = state._replace(store=state.store._replace(revision=revision))
    state = _with_keys(state, place, Registered(state.agents[place].member, revision))
    return put(state, place, term=None)


def newcomer(name: str) -> Agent:
    member = Member(
        agent=name, node=name, address="", slots=1, probe_port=1, store_port=1, lease=1, state=MemberState.JOINING
    )
    return Agent(member=member)


def _with_keys(state: State, place: int, found: Registered | None) -> State:
    members = list(state.store.members)
    members[place] = found
    return state._replace(store=state.store._replace(members=tuple(members)))


def _without_keys(state: State, place: int) -> State:
    return _with_keys(state, place, None)
