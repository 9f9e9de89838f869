"""Oracle: who is in the next world and in which order, told a second time and as simply as can be.

Nothing is shared with the product but what keys hold. It keeps its own account of who rests after a cut.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection

from elastic.rendezvous.model import Member, MemberState, Phase, World

PAUSES_S = (5, 10, 20, 40)
LONGEST_PAUSE_S = 60


class Oracle:
    """Told of each world as it is formed; asked before what it must be."""

    def __init__(self, *, min_nodes: int, max_nodes: int) -> None:
        self.min_nodes, self.max_nodes = min_nodes, max_nodes
        self._tries: dict[str, int] = {}
        self._rests_until_s: dict[str, float] = {}
        self._last_side: set[str] = set()
        self._owes: dict[str, int] = {}

    def begin_anew(self) -> None:
        """The job was closed, or the store lost: nothing of before counts."""
        self._tries.clear()
        self._rests_until_s.clear()
        self._owes.clear()

    def new_leader(self, now_s: float) -> None:
        """A new leader knows how often an agent was tried, not since when it rests."""
        for agent in self._rests_until_s:
            self._rests_until_s[agent] = now_s + self._pause_s(agent)

    def next_world(
        self, old: World | None, *, members: Collection[Member], barred: Collection[str], leader: str, now_s: float
    ) -> list[str]:
        """Agents in rank order; too few means that no world may be formed."""
        side = self._side(old, members=members, barred=barred, leader=leader, now_s=now_s)
        self._last_side = side
        order = self._order(old, [m for m in members if m.agent in side])
        return order[: self.max_nodes]

    def formed(
        self, old: World | None, *, new: World, members: Collection[Member], barred: Collection[str], now_s: float
    ) -> None:
        """Remember who was left out of the world that `next_world` has just told."""
        seated = {seat.agent for seat in new.seats}
        live = {member.agent for member in members}
        tried = {seat.agent for seat in old.seats} if old else set()
        for member in members:
            agent = member.agent
            if agent in barred:
                self._forget(agent)
            elif agent in seated:
                if agent in tried:
                    self._forget(agent)
            elif (agent in tried or agent not in self._tries) and self._was_cut(member, old, now_s):
                self._tries[agent] = self._tries.get(agent, 0) + 1
                self._rests_until_s[agent] = now_s + self._pause_s(agent)
        for agent in list(self._tries):
            if agent not in live:
                self._forget(agent)
        for member in members:
            owed = old.generation if old and member.agent in tried else self._owes.get(member.agent, 0)
            if member.agent in seated or member.ended_generation >= owed:
                self._owes.pop(member.agent, None)
            else:
                self._owes[member.agent] = owed

    def _side(
        self, old: World | None, *, members: Collection[Member], barred: Collection[str], leader: str, now_s: float
    ) -> set[str]:
        places = [seat.agent for seat in old.seats] if old else []
        asking = [m for m in members if m.agent not in barred and self._asked(m, old)]
        asking = [m for m in asking if m.agent in places or self._was_awake(m.agent, now_s)]
        survivors = {m.agent for m in asking} & set(places)
        listed = [m for p in places for m in asking if m.agent == p] + [m for m in asking if m.agent not in places]
        best: tuple[tuple, set[str]] = ((-1,), set())
        for chosen in itertools.product((True, False), repeat=len(listed)):
            side = [m for m, taken in zip(listed, chosen, strict=True) if taken]
            if any(self._apart(one, other, old) for one, other in itertools.combinations(side, 2)):
                continue
            agents = {m.agent for m in side}
            early = [-place for place, m in enumerate(listed) if m.agent in agents]
            worth = (min(len(side), self.max_nodes), len(agents & survivors), leader in agents, early)
            if worth > best[0]:
                best = (worth, agents)
        return best[1]

    def _order(self, old: World | None, joiners: list[Member]) -> list[str]:
        here = {m.agent for m in joiners}
        kept = [seat.agent if seat.agent in here else "" for seat in (old.seats if old else ())]
        new = sorted((m for m in joiners if m.agent not in kept), key=lambda m: (_natural(m.node), m.agent))
        queue = [m.agent for m in new][: max(0, self.max_nodes - sum(map(bool, kept)))]
        filled = [agent or (queue.pop(0) if queue else "") for agent in kept]
        return [agent for agent in filled + queue if agent]

    def must_be_heard(self, old: World, members: Collection[Member]) -> bool:
        """Whether some member of this world has said something, so that the next one is formed only when all have."""
        seated = [member for member in members if old.seat_of(member.agent)]
        return any(
            member.state is not MemberState.JOINING
            or member.ended_generation >= old.generation
            or any(self._names(member, other, old) for other in seated)
            for member in seated
        )

    def _asked(self, member: Member, old: World | None) -> bool:
        if member.state is not MemberState.JOINING:
            return False
        if old is not None and old.phase is Phase.FORMED and old.seat_of(member.agent):
            return True
        if old is not None and any(seat.agent == member.agent for seat in old.seats):
            return member.ended_generation >= old.generation
        return member.ended_generation >= max(member.last_generation, self._owes.get(member.agent, 0))

    def _apart(self, one: Member, other: Member, old: World | None) -> bool:
        return self._names(one, other, old) or self._names(other, one, old)

    def _names(self, one: Member, other: Member, old: World | None) -> bool:
        seated = old is not None and any(seat.agent == one.agent for seat in old.seats)
        fresh = not seated or one.unreachable_in == old.generation
        return fresh and other.agent in one.unreachable

    def _was_cut(self, member: Member, old: World | None, now_s: float) -> bool:
        awake = self._was_awake(member.agent, now_s) or (old is not None and old.seat_of(member.agent) is not None)
        return awake and self._asked(member, old) and member.agent not in self._last_side

    def _was_awake(self, agent: str, now_s: float) -> bool:
        return self._rests_until_s.get(agent, now_s) <= now_s

    def _pause_s(self, agent: str) -> float:
        tries = self._tries[agent]
        return PAUSES_S[tries - 1] if tries <= len(PAUSES_S) else LONGEST_PAUSE_S

    def _forget(self, agent: str) -> None:
        self._tries.pop(agent, None)
        self._rests_until_s.pop(agent, None)


def _natural(text: str) -> list:
    return [int(part) if part.isdigit() else part for part in re.findall(r"\d+|\D+", text)]
