"""View: all that the leader knows when it decides, and how that grows with what it sees.

Pure: times are seconds of the leader's own clock, handed in. A new leader starts with an empty view and reads the
keys, so waits begin again; nothing else is lost with a leader.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from elastic.rendezvous import alike, launched, versions
from elastic.rendezvous.model import Barred, Cut, Member, MemberState, ProbeResult, Seat, World

_LONGER_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How many nodes, and how long the leader waits for whom.

    first_wait_s: at a first start, for further nodes, counted from the last arrival.
    late_wait_s: for a member that answers but is not back, or is here and has not asked yet. planned_wait_s: the same
    while workers finish and save.
    holders_wait_s: for nodes that hold what was committed, where those that are here do not.
    unconfirmed_limit_s: how long workers may go on while their agent's lease is not certain. reprobe_s: until an
    answer counts as old.
    ask_all_up_to: of so many seats all are asked before a world is formed directly; of more, none.
    no_progress_limit: failures without getting past a step that end the job. bucket_limit: generations without
    progress that one reason may end.
    """

    min_nodes: int
    max_nodes: int
    first_wait_s: float = 3.0
    late_wait_s: float = 5.0
    holders_wait_s: float = 30.0
    planned_wait_s: float = 120.0
    unconfirmed_limit_s: float = 300.0
    reprobe_s: float = 1.0
    ask_all_up_to: int = 32
    no_progress_limit: int = 3
    bucket_limit: int = 10

    @property
    def unconfirmed_s(self) -> float:
        """How long a member at work that answers but has no key is left alone.

        The leader is the more patient one: an agent ends its own workers at the limit, which needs no store.
        """
        return self.unconfirmed_limit_s + _LONGER_S


@dataclass(frozen=True, kw_only=True)
class ProbeAnswer:
    """What a probe found, and when."""

    result: ProbeResult
    at_s: float


@dataclass(frozen=True, kw_only=True)
class LeaderView:
    """World, members, and since when each fact holds. Mappings are by agent; never change one in place.

    `leader` is the agent whose view this is. A person may have `resized` the limits, or want the job `paused`; `asked`
    tells who and why (see wish.py). `cut_s` and `barred_s` since when each entry of the world's `cut` and
    `barred` stands there.
    """

    limits: Limits
    resized: bool = False
    paused: bool = False
    asked: str = ""
    leader: str = ""
    world: World | None = None
    world_since_s: float = 0.0
    members: Mapping[str, Member] = field(default_factory=dict)
    arrived_s: Mapping[str, float] = field(default_factory=dict)
    absent_s: Mapping[str, float] = field(default_factory=dict)
    cut_s: Mapping[Cut, float] = field(default_factory=dict)
    barred_s: Mapping[Barred, float] = field(default_factory=dict)
    left: frozenset[str] = frozenset()
    probes: Mapping[str, ProbeAnswer] = field(default_factory=dict)

    def answer(self, agent: str, *, since_s: float) -> ProbeAnswer | None:
        """The last probe's answer, if it is not older than `since_s`."""
        found = self.probes.get(agent)
        return found if found is not None and found.at_s >= since_s else None


@dataclass(frozen=True, kw_only=True)
class Roster:
    """Who is who in a world: each seat is in exactly one of the first six, newcomers ask and have no seat."""

    active: tuple[Seat, ...] = ()
    back: tuple[Seat, ...] = ()
    leaving: tuple[Seat, ...] = ()
    left: tuple[Seat, ...] = ()
    done: tuple[Seat, ...] = ()
    gone: tuple[Seat, ...] = ()
    newcomers: tuple[Member, ...] = ()


def observe(view: LeaderView, *, world: World | None, members: Mapping[str, Member], now_s: float) -> LeaderView:
    """The view after reading the keys again."""
    seats = {seat.agent for seat in world.seats} if world else set()
    leaving = {agent for agent, member in members.items() if member.state is MemberState.LEAVING}
    left = (view.left | leaving | set(world.leaving if world else ())) & (seats | set(members))
    return dataclasses.replace(
        view,
        world=world,
        world_since_s=view.world_since_s if _same_round(view.world, world) else now_s,
        members=dict(members),
        arrived_s={agent: view.arrived_s.get(agent, now_s) for agent in members},
        absent_s={agent: view.absent_s.get(agent, now_s) for agent in seats if agent not in members},
        cut_s={cut: view.cut_s.get(cut, now_s) for cut in (world.cut if world else ())},
        barred_s={entry: view.barred_s.get(entry, now_s) for entry in (world.barred if world else ())},
        left=frozenset(left),
        probes={agent: found for agent, found in view.probes.items() if agent in seats},
    )


def with_probes(view: LeaderView, *, results: Mapping[str, ProbeResult], now_s: float) -> LeaderView:
    """The view after probing some agents."""
    answers = {agent: ProbeAnswer(result=result, at_s=now_s) for agent, result in results.items()}
    return dataclasses.replace(view, probes={**view.probes, **answers})


def roster(view: LeaderView) -> Roster:
    """Sort the seats of the present world, and the members that ask for one."""
    world = view.world
    if world is None:
        return Roster(newcomers=understood(view, (m for m in view.members.values() if asks(m)), world=None))
    groups: dict[str, list[Seat]] = {name: [] for name in ("active", "back", "leaving", "left", "done", "gone")}
    for seat in world.seats:
        groups[_standing(view, world, seat)].append(seat)
    seated = {seat.agent for seat in world.seats}
    out = {entry.agent: entry.generation for entry in world.left_out}
    no_more = seated | {entry.agent for entry in world.barred}
    newcomers = tuple(
        member
        for member in view.members.values()
        if member.agent not in no_more and asks(member, after=out.get(member.agent, 0))
    )
    newcomers = understood(view, newcomers, world=world)
    newcomers = alike.fitting(newcomers, world=world, here=view.members.keys())
    return Roster(newcomers=newcomers, **{name: tuple(seats) for name, seats in groups.items()})


def coming(view: LeaderView, *, world: World | None, since: int = 0) -> tuple[Member, ...]:
    """Members that have not asked yet, since they get ready first, and could be in this world, or in the first one of a
    start. `since`: only those that came after the generation of that number was closed."""
    idle = (m for m in view.members.values() if m.state is MemberState.IDLE and m.seen_closed >= since)
    found = understood(view, idle, world=world)
    return found if world is None else alike.fitting(found, world=world, here=view.members.keys())


def understood(view: LeaderView, newcomers: Iterable[Member], *, world: World | None) -> tuple[Member, ...]:
    """Those whose version and launch may be in this world, or in the first one of a start."""
    leader = view.members.get(view.leader)
    spoken = versions.fitting(newcomers, world=world, here=view.members.keys(), leader=leader)
    return launched.fitting(spoken, world=world, here=view.members.keys(), leader=leader)


def asks(member: Member, *, after: int = 0) -> bool:
    """Whether a member without a seat waits for one: it has ended the last generation that it had a seat in."""
    return member.state is MemberState.JOINING and member.ended_generation >= max(member.last_generation, after)


def _standing(view: LeaderView, world: World, seat: Seat) -> str:
    member = view.members.get(seat.agent)
    if member is None:
        return "left" if seat.agent in view.left else "gone"
    if member.state is MemberState.LEAVING:
        return "leaving"
    if member.ended_generation < world.generation:
        return "active"
    return "done" if member.state is MemberState.DONE else "back"


def _same_round(old: World | None, new: World | None) -> bool:
    """Waits go on while generation, phase and manner are the same; anything else starts them anew."""
    if old is None or new is None:
        return old is new
    return (old.generation, old.phase, old.planned) == (new.generation, new.phase, new.planned)
