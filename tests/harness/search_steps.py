"""Steps of a small world: all that can happen next, one thing at a time. What must never happen raises Violation.

The leader's decisions, the compares and the numbers of generations are the product's own code; how agents follow the
world key is told again here, as in Coordinator.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from elastic.events import Cause
from elastic.rendezvous.ending import missed_generation, unheard_generation
from elastic.rendezvous.lost_world import restorable
from elastic.rendezvous.membership import goes_on_in, regroup_of
from elastic.rendezvous.model import FailureReport, Member, MemberState, Phase, ProbeResult, World
from elastic.rendezvous.verdict import Evict, Probe, Wait
from elastic.rendezvous.view import LeaderView, with_probes
from elastic.rendezvous.wish import under
from tests.harness.search_state import (
    NAMES,
    NOW_S,
    UNKNOWN,
    Agent,
    Asked,
    Pending,
    Registered,
    State,
    Store,
    Term,
    aged,
    freeze,
    thaw,
)
from tests.harness.search_writes import Rules, Violation, commit, put, restore, with_keys, without_keys, write

PEER_LOST = FailureReport(cause=Cause.PEER_LOST, rank=0, step=1, signature="")
BROKEN = FailureReport(cause=Cause.WORKER_EXIT, rank=0, step=1, signature="E", committed_steps=1)
FAULTS = ("crash", "lose-lease", "fail", "break", "finish-first", "cut", "delay", "delay-commit", "wipe")


Step = tuple[str, State]


def following(state: State, *, rules: Rules, most_faults: int) -> Iterator[Step]:
    """Every step that can be taken."""
    for place, agent in enumerate(state.agents):
        name = NAMES[place]
        if state.store.members[place] is not None and not agent.up:
            yield f"expire {name}", without_keys(state, place)
        if agent.flight is not None:
            sent = put(state, place, flight=None)
            yield f"land {name}", write(sent, place, pending=agent.flight, rules=rules, answered=False)
        if agent.late is not None:
            sent = put(state, place, late=None)
            yield f"land-commit {name}", commit(sent, place, asked=agent.late, rules=rules)
        if not agent.up:
            continue
        if state.faults < most_faults:
            for what, after in _faults(state, place):
                yield f"{what} {name}", after._replace(faults=state.faults + 1)
        for what, after in (*_follow(state, place, rules=rules), *_lead(state, place, rules=rules)):
            yield f"{what} {name}", after
    if state.faults < most_faults and state.newest > 0:
        known = all(agent.generation == state.newest for agent in state.agents if agent.up)
        yield "wipe", _wiped(state, blind=state.blind or not known)
    if state.faults < most_faults and state.store.world is not None:
        yield from _wishes(state, rules=rules)


def _wishes(state: State, *, rules: Rules) -> Iterator[Step]:
    """A person asks for something else than was asked for last."""
    if state.store.world is None or state.store.world.phase is Phase.CLOSED:
        return
    for wish in rules.wishes:
        if wish != state.store.wish:
            store = state.store._replace(wish=wish)
            yield f"ask-{wish.what}", state._replace(store=store, faults=state.faults + 1)


def _wiped(state: State, *, blind: bool) -> State:
    """All keys are gone, the commit record too: what arrives late takes nothing back."""
    agents = [
        agent._replace(
            commit=agent.commit and agent.commit._replace(ahead=1), late=agent.late and agent.late._replace(ahead=1)
        )
        for agent in state.agents
    ]
    state = state._replace(agents=tuple(agents))
    return state._replace(store=Store(revision=state.store.revision + 1), blind=blind, faults=state.faults + 1)


def _forgotten(state: State) -> bool:
    """The store was wiped and not all have come back: a leader waits for that (first_wait_s) before it decides."""
    missing = any(agent.up and key is None for agent, key in zip(state.agents, state.store.members, strict=True))
    return state.store.world is None and state.newest > 0 and missing and not state.blind


def _faults(state: State, place: int) -> Iterator[Step]:
    agent = state.agents[place]
    if agent.pending is not None and agent.flight is None:
        yield "delay", put(state, place, term=None, pending=None, flight=agent.pending)
    if agent.commit is not None and agent.late is None:
        yield "delay-commit", put(state, place, commit=None, late=agent.commit)
    yield "crash", put(state, place, up=False, running=False, commit=None, restoring=False, term=None, pending=None)
    if state.store.members[place] is not None:
        yield "lose-lease", without_keys(state, place)
    if agent.running:
        yield "fail", _ended(state, place, report=PEER_LOST)
        yield "break", _ended(state, place, report=dataclasses.replace(BROKEN, generation=agent.generation))
        if not _finishing(state):
            yield "finish-first", _done(state, place)
        others = [name for name in NAMES if name != NAMES[place]]
        said = dataclasses.replace(agent.member, unreachable=(others[place % 2],), unreachable_in=agent.generation)
        yield "cut", _publish(state, place, said)


def _follow(state: State, place: int, *, rules: Rules) -> Iterator[Step]:
    """What the agent itself does: keep its keys, watch the world, begin and end generations, commit."""
    agent, store = state.agents[place], state.store
    if store.members[place] is None and rules.register_again and not agent.told:
        yield "register", registered(state, place)
    if (agent.seen, agent.seen_revision) != (store.world, store.world_revision):
        yield "see", put(state, place, seen=store.world, seen_revision=store.world_revision)
    if agent.running and agent.commit is None and agent.joined is not None:
        yield "prepare", put(state, place, commit=Asked(agent.joined.token, store.commit_revision))
    if agent.commit is not None:
        yield "commit", commit(put(state, place, commit=None), place, asked=agent.commit, rules=rules)
    if agent.restoring:
        yield "restore", restore(put(state, place, restoring=False), place, rules=rules)
    if agent.told or agent.seen == UNKNOWN:
        return
    world = agent.seen
    if world is None or isinstance(world, str):
        here = [found.member for found in store.members if found is not None]
        joined = agent.joined
        its_part = joined is not None and joined.seats[0].agent == NAMES[place] and not agent.restoring
        if its_part and restorable(joined, members=here).verdict:
            yield "find", put(state, place, restoring=True)
        if agent.running and rules.regroup:
            yield "end", _ended(state, place, report=None)
        yield from _say(state, place, world=None, rules=rules)
        return
    if world.phase is Phase.CLOSED:
        yield "hear", put(state, place, told=True, running=False)
        return
    yield from _say(state, place, world=world, rules=rules)
    if agent.running and _finishing(state):
        yield "finish", _done(state, place)
    over = regroup_of(world, agent=NAMES[place], generation=agent.generation) is not None
    if agent.running and over and rules.regroup:
        yield "end", _ended(state, place, report=None)
    last = max(agent.generation, agent.member.ended_generation)
    newer = world.generation > last if rules.only_newer else world.generation >= agent.generation
    waits = not agent.running or not rules.ends_first
    waits = waits and agent.member.state is MemberState.JOINING
    waits = waits and not (rules.says_unheard(agent.member) and _unheard(state, place, world=world, rules=rules))
    if waits and world.phase is Phase.FORMED and newer and world.seat_of(NAMES[place]):
        yield "enter", _entered(state, place, world)


def _say(state: State, place: int, *, world: World | None, rules: Rules) -> Iterator[Step]:
    """An agent without workers says what it owes, see Waiting."""
    agent = state.agents[place]
    if agent.running:
        return
    member = agent.member
    if unheard := _unheard(state, place, world=world, rules=rules):
        if rules.says_unheard(member):
            yield "decline", _publish(state, place, dataclasses.replace(member, ended_generation=unheard))
        return
    entered = agent.generation if rules.says_unsaid else 0
    missed = missed_generation(world, agent=NAMES[place], ended=member.ended_generation, entered=entered)
    if missed and rules.says_missed:
        yield "miss", _publish(state, place, dataclasses.replace(member, ended_generation=missed))


def _unheard(state: State, place: int, *, world: World | None, rules: Rules) -> int:
    agent = state.agents[place]
    since = rules.knows_since and agent.since > agent.seen_revision
    return unheard_generation(world, member=agent.member, written_since=since)


def _lead(state: State, place: int, *, rules: Rules) -> Iterator[Step]:
    agent, store = state.agents[place], state.store
    if agent.pending is not None:
        sent = put(state, place, pending=None)
        yield "write", write(sent, place, pending=agent.pending, rules=rules, answered=True)
        return
    term = agent.term
    if term is None:
        own = store.members[place]
        oldest = min((found.created for found in store.members if found), default=0)
        if own is not None and own.created == oldest:
            view = LeaderView(limits=rules.limits, leader=NAMES[place])
            new = Term(own.created, freeze(view), store.world, store.world_revision, store.members, store.wish)
            yield "stand", put(state, place, term=new)
        return
    if (term.world, term.world_revision) != (store.world, store.world_revision) and rules.read_after_refusal:
        yield "read", put(state, place, term=term._replace(world=store.world, world_revision=store.world_revision))
    members = store.members
    if not rules.reset_after_gap:
        members = tuple(new or old for new, old in zip(store.members, term.members, strict=True))
    if term.wish != store.wish:
        yield "wish", put(state, place, term=term._replace(wish=store.wish))
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
    blank = under(LeaderView(limits=rules.limits, leader=NAMES[place]), limits=rules.limits, wish=term.wish)
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


def _entered(state: State, place: int, world: World) -> State:
    agent = state.agents[place]
    if world.generation <= agent.generation:
        raise Violation(f"{NAMES[place]} enters generation {world.generation} after {agent.generation}")
    if agent.running:
        raise Violation(f"{NAMES[place]} enters {world.generation} while its workers of {agent.generation} run")
    report = agent.member.report
    heard = {(failure.generation, failure.agent) for failure in world.failures}
    own = world.direct and report is not None and report.is_own
    if own and (report.generation, NAMES[place]) not in heard:
        raise Violation(f"a failure of {NAMES[place]} in generation {report.generation} was never heard")
    member = dataclasses.replace(agent.member, last_generation=world.generation, report=None, unreachable=())
    state = put(state, place, joined=world, running=True)
    # Who hosts the workers' store writes where the next one is; the others write nothing.
    hosts = world.seats[0].agent == NAMES[place]
    return _publish(state, place, member) if hosts else put(state, place, member=member)


def _finishing(state: State) -> bool:
    """Some agent is done: then all are, at the same step."""
    return any(agent.member.state is MemberState.DONE for agent in state.agents)


def _done(state: State, place: int) -> State:
    agent = state.agents[place]
    said = dataclasses.replace(
        agent.member,
        state=MemberState.DONE,
        ended_generation=agent.generation,
        last_generation=agent.generation,
        report=None,
    )
    return _publish(put(state, place, running=False, commit=None), place, said)


def _ended(state: State, place: int, *, report: FailureReport | None) -> State:
    agent = state.agents[place]
    own = report is not None and report.is_own
    if not own and isinstance(agent.seen, World) and goes_on_in(agent.seen, agent=NAMES[place], after=agent.generation):
        return put(state, place, running=False)  # nothing need be said
    said = dataclasses.replace(
        agent.member, ended_generation=agent.generation, last_generation=agent.generation, report=report
    )
    return _publish(put(state, place, running=False), place, said)


def _publish(state: State, place: int, said: Member) -> State:
    state = put(state, place, member=said)
    found = state.store.members[place]
    if found is None:
        return state
    return with_keys(state, place, found._replace(member=said))


def registered(state: State, place: int) -> State:
    """A new lease, both keys written under it; an agent that leads stands again."""
    revision = state.store.revision + 1
    state = state._replace(store=state.store._replace(revision=revision))
    state = with_keys(state, place, Registered(state.agents[place].member, revision))
    return put(state, place, term=None, since=revision)


def newcomer(name: str) -> Agent:
    member = Member(
        agent=name, node=name, address="", slots=1, probe_port=1, store_port=1, lease=1, state=MemberState.JOINING
    )
    return Agent(member=member)
