"""State of a small world: three agents, one store, all that is under way. Hashable, and the same whatever its history.

Revisions are renumbered, so that only their order counts; times are ages of either nothing or more than any wait.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from elastic.rendezvous.keys import Keys
from elastic.rendezvous.kv import Aspect, Compare
from elastic.rendezvous.model import Member, World
from elastic.rendezvous.verdict import Close, Evict, Form, Open
from elastic.rendezvous.view import LeaderView
from elastic.rendezvous.wish import NO_WISH, Wish

KEYS = Keys.of(prefix="/jobs", job_id="j")
NAMES = ("a", "b", "c")
NOW_S = 1000.0
LONG_AGO_S = 0.0
UNKNOWN = "unknown"
"""What an agent's watch of the world has told before it told anything."""

Write = Open | Form | Close | Evict


class Registered(NamedTuple):
    """An agent's two keys in the store. They live by one lease, whose name is the revision that made them."""

    member: Member
    created: int


class Store(NamedTuple):
    """The cluster. `members` by place of the agent; `generation` holds the newest world's token, "": there is none."""

    revision: int = 0
    world: World | None = None
    world_revision: int = 0
    generation: str = ""
    commit_revision: int = 0
    members: tuple[Registered | None, ...] = (None, None, None)
    wish: Wish = NO_WISH


class Term(NamedTuple):
    """What an agent that believes that it leads knows: its own key, and what its watches have told."""

    created: int
    view: FrozenView
    world: World | None
    world_revision: int
    members: tuple[Registered | None, ...]
    wish: Wish = NO_WISH


class Pending(NamedTuple):
    """A write that a leader has decided and not sent yet: it may be paused here for as long as it likes."""

    verdict: Write
    created: int
    world_revision: int
    leases: tuple[int, ...] = ()


class Asked(NamedTuple):
    """A commit under way: its token, the record's revision when it was read, how many steps it is ahead of it."""

    token: str
    revision: int
    ahead: int = 1


class Agent(NamedTuple):
    """One agent. `member` is what its key should say, `joined` the last generation entered.

    `since` is the revision that its keys were last written anew at, `seen_revision` that of the world seen last.
    `flight` and `late` are a world and a commit that were sent and never answered: they may still arrive, even after
    their sender has died. `restoring`: it has found that it may write the lost world again.
    """

    member: Member
    up: bool = True
    joined: World | None = None
    running: bool = False
    told: bool = False
    seen: World | str | None = UNKNOWN
    seen_revision: int = 0
    since: int = 0
    commit: Asked | None = None
    late: Asked | None = None
    restoring: bool = False
    term: Term | None = None
    pending: Pending | None = None
    flight: Pending | None = None

    @property
    def generation(self) -> int:
        return self.joined.generation if self.joined else 0


class State(NamedTuple):
    """Everything. `newest` is the highest generation ever formed, `last` the token of the world formed last.

    `blind`: the store was wiped while some live agent did not know the newest number, so it may be given again.
    """

    agents: tuple[Agent, ...]
    store: Store
    newest: int = 0
    last: str = ""
    blind: bool = False
    faults: int = 0


class FrozenView(NamedTuple):
    """A leader's view without its mappings, so that it can be compared."""

    world_since_s: float
    arrived: tuple[tuple[str, float], ...]
    absent: tuple[tuple[str, float], ...]
    cut: tuple[tuple[object, float], ...]
    left: frozenset[str]
    probes: tuple[tuple[str, object], ...]
    world: World | None


def freeze(view: LeaderView) -> FrozenView:
    return FrozenView(
        world_since_s=view.world_since_s,
        arrived=tuple(sorted(view.arrived_s.items())),
        absent=tuple(sorted(view.absent_s.items())),
        cut=tuple(view.cut_s.items()),
        left=view.left,
        probes=tuple(sorted(view.probes.items())),
        world=view.world,
    )


def thaw(frozen: FrozenView, *, blank: LeaderView) -> LeaderView:
    return dataclasses.replace(
        blank,
        world=frozen.world,
        world_since_s=frozen.world_since_s,
        arrived_s=dict(frozen.arrived),
        absent_s=dict(frozen.absent),
        cut_s=dict(frozen.cut),
        left=frozen.left,
        probes=dict(frozen.probes),
    )


def aged(frozen: FrozenView) -> FrozenView:
    """The view after all waits have passed; answers of probes are old."""

    def old(pairs: tuple) -> tuple:
        return tuple((name, LONG_AGO_S) for name, _since_s in pairs)

    return frozen._replace(
        world_since_s=LONG_AGO_S,
        arrived=old(frozen.arrived),
        absent=old(frozen.absent),
        cut=old(frozen.cut),
        probes=(),
    )


def holds(store: Store, compare: Compare) -> bool:
    """Whether the store would let a transaction with this condition pass."""
    if compare.key == KEYS.world and compare.aspect is Aspect.MODIFIED:
        return store.world_revision == compare.expected
    if compare.key == KEYS.generation and compare.aspect is Aspect.VALUE:
        return store.generation == compare.expected
    if compare.key == KEYS.commit and compare.aspect is Aspect.MODIFIED:
        return store.commit_revision == compare.expected
    for place, name in enumerate(NAMES):
        found = store.members[place]
        if compare.key == KEYS.member(name) and compare.aspect is Aspect.PRESENT:
            return found is not None
        if compare.key == KEYS.candidate(name) and compare.aspect is Aspect.CREATED:
            return (found.created if found else 0) == compare.expected
    raise AssertionError(f"the model's store does not know {compare}")


def _revisions(state: State) -> set[int]:
    """All that are mentioned anywhere."""
    store = state.store
    seen = {store.world_revision, store.commit_revision, *(found.created for found in store.members if found)}
    for agent in state.agents:
        seen |= {agent.seen_revision, agent.since}
        if agent.term is not None:
            seen |= {agent.term.created, agent.term.world_revision}
            seen |= {found.created for found in agent.term.members if found}
        seen |= {asked.revision for asked in (agent.commit, agent.late) if asked is not None}
        for write in (agent.pending, agent.flight):
            if write is not None:
                seen |= {write.created, write.world_revision, *write.leases}
    return seen


def renumbered(state: State) -> State:
    """The same state with the revisions 1, 2, 3 … in their order."""
    store = state.store
    order = {revision: number for number, revision in enumerate(sorted(_revisions(state) | {0}))}
    last = len(order) - 1
    if last == store.revision and max(order) == last:
        return state

    def registered(members: tuple[Registered | None, ...]) -> tuple[Registered | None, ...]:
        return tuple(found and found._replace(created=order[found.created]) for found in members)

    def written(write: Pending | None) -> Pending | None:
        return write and Pending(
            write.verdict,
            order[write.created],
            order[write.world_revision],
            tuple(order[lease] for lease in write.leases),
        )

    def asked(commit: Asked | None) -> Asked | None:
        return commit and commit._replace(revision=order[commit.revision])

    agents = []
    for agent in state.agents:
        term = agent.term
        if term is not None:
            term = term._replace(
                created=order[term.created],
                world_revision=order[term.world_revision],
                members=registered(term.members),
            )
        agents.append(
            agent._replace(
                term=term,
                pending=written(agent.pending),
                flight=written(agent.flight),
                commit=asked(agent.commit),
                seen_revision=order[agent.seen_revision],
                since=order[agent.since],
                late=asked(agent.late),
            )
        )
    return state._replace(
        agents=tuple(agents),
        store=store._replace(
            revision=last,
            world_revision=order[store.world_revision],
            commit_revision=order[store.commit_revision],
            members=registered(store.members),
        ),
    )
