"""Search: every order of events of a small world, breadth first, and from where it stops whether all ends well."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from elastic.rendezvous.model import MemberState, Phase
from tests.harness.search_state import NAMES, Agent, State, Store, renumbered
from tests.harness.search_steps import FAULTS, following, newcomer, registered
from tests.harness.search_writes import Rules, Violation, put

_MOST_ROUNDS = 80
# In a fair run everything under way goes on; nothing new goes wrong.
_UNFAIR = (*FAULTS, "time", "prepare")


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a search saw. `path` leads to the violation, `fired` counts the steps taken by their names."""

    states: int
    depth: int
    settled: int
    fired: dict[str, int]
    violation: str = ""
    path: tuple[str, ...] = ()


def beginning() -> State:
    """Three agents have come; the first leads, nothing is decided."""
    state = State(agents=tuple(newcomer(name) for name in NAMES), store=Store())
    for place in range(len(NAMES)):
        state = registered(state, place)
    return renumbered(state)


def given(rules: Rules) -> State:
    """The first generation is written, and nobody has heard of it."""
    state = beginning()
    for name in ("stand a", "decide a", "write a"):
        state = renumbered(dict(following(state, rules=rules, most_faults=0))[name])
    return state


def at_work(rules: Rules) -> State:
    """The first generation is formed and all run it."""
    return renumbered(settled(beginning(), rules=rules)[0])


def forgotten(rules: Rules) -> State:
    """The store has lost everything; all have written their keys again and the first is about to restore the world."""
    state = at_work(rules)
    names = ("wipe", "see a", "see b", "see c", "register a", "register b", "register c", "find a")
    for name in names:
        state = renumbered(dict(following(state, rules=rules, most_faults=1))[name])
    return state


def losing(rules: Rules) -> State:
    """A member has died and is gone; the leader is about to write the next world, while the others are at work."""
    state = at_work(rules)
    for name in ("crash c", "expire c", "members a", "decide a"):
        state = renumbered(dict(following(state, rules=rules, most_faults=1))[name])
    return state


def search(
    start: State, *, rules: Rules, depth: int, most_faults: int, most_states: int = 10**9, settle_each: int = 0
) -> Found:
    """Look at every state that up to `depth` steps lead to.

    settle_each: from every so many-th state found, go on fairly without further faults and see that every live agent
    is placed or told; 0: from none.
    """
    seen: dict[State, tuple[State | None, str]] = {start: (None, "")}
    queue = deque([(start, 0)])
    fired: dict[str, int] = {}
    reached = runs = 0

    def found(violation: str = "", path: tuple[str, ...] = ()) -> Found:
        return Found(states=len(seen), depth=reached, settled=runs, fired=fired, violation=violation, path=path)

    while queue:
        origin, reached = queue.popleft()
        state = origin
        if reached >= depth or len(seen) >= most_states:
            break
        try:
            for name, after in following(origin, rules=rules, most_faults=most_faults):
                fired[name.split()[0]] = fired.get(name.split()[0], 0) + 1
                after = renumbered(after)
                if after in seen:
                    continue
                seen[after] = (origin, name)
                queue.append((after, reached + 1))
                if settle_each and len(seen) % settle_each == 0:
                    runs, state = runs + 1, after
                    _check_settles(after, rules=rules)
        except Violation as violation:
            return found(str(violation), tuple(_path(seen, state)))
    return found()


def settled(state: State, *, rules: Rules) -> tuple[State, bool]:
    """Go on fairly until nothing more happens; whether that came within the rounds allowed."""
    for place, agent in enumerate(state.agents):
        # The cut is mended: who said that it cannot reach others takes it back.
        state = put(state, place, member=agent.member.__class__(**{**vars(agent.member), "unreachable": ()}))
        if (key := state.store.members[place]) is not None and key.member.unreachable:
            members = list(state.store.members)
            members[place] = key._replace(member=state.agents[place].member)
            state = state._replace(store=state.store._replace(members=tuple(members)))
    for _round in range(_MOST_ROUNDS):
        before = state
        for name in NAMES:
            state = _run_agent(state, name, rules=rules)
        if state == before:
            state = _pass_time(state, rules=rules)
        if state == before:
            return state, True
    return state, False


def _run_agent(state: State, name: str, *, rules: Rules) -> State:
    for _step in range(20):
        steps = [
            after
            for what, after in following(state, rules=rules, most_faults=0)
            if what.split()[0] not in _UNFAIR and what.endswith(f" {name}")
        ]
        if not steps:
            return state
        state = renumbered(steps[0])
    return state


def _pass_time(state: State, *, rules: Rules) -> State:
    for what, after in following(state, rules=rules, most_faults=0):
        if what.startswith("time"):
            return renumbered(after)
    return state


def _check_settles(state: State, *, rules: Rules) -> None:
    end, _quiet = settled(state, rules=rules)
    live = [agent for agent in end.agents if agent.up]
    world = end.store.world
    if world is not None and world.phase is Phase.CLOSED:
        lost = [agent for agent in live if not agent.told]
    elif len(live) < (end.store.wish.min_nodes or rules.limits.min_nodes):
        lost = []
    elif end.store.wish.paused and world is not None:
        lost = [agent for agent in live if agent.running and not agent.told]
    else:
        lost = [agent for agent in live if not _placed(agent, end)]
        if 0 < end.store.wish.max_nodes == len(live) - len(lost):
            lost = []
        if world is None:
            # Who is done and hears of no end, ends: its final state is durable.
            lost = [agent for agent in lost if agent.member.state is not MemberState.DONE]
    if lost:
        names = ", ".join(agent.member.agent for agent in lost)
        where = f"{world.phase} {world.generation}" if world else "no world"
        raise Violation(f"{names} not placed in the end: {where}")


def _placed(agent: Agent, end: State) -> bool:
    world = end.store.world
    if world is None or world.phase is not Phase.FORMED or agent.told:
        return agent.told
    # After a wipe that nobody knew the newest number through, a lower one may be given.
    return agent.running and agent.generation == world.generation and (end.blind or world.generation == end.newest)


def _path(seen: dict[State, tuple[State | None, str]], state: State) -> Iterator[str]:
    steps = []
    while (found := seen[state])[0] is not None:
        steps.append(found[1])
        state = found[0]
    return reversed(steps)
