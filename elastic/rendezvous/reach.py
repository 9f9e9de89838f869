"""Reach: of agents that cannot all reach each other, the side that goes on. Two are cut if either says so.

Pure. A world whose members do not all reach each other never forms its group, so a world is one mutually reachable set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from elastic.rendezvous.model import Member

EXACT_UP_TO = 12
"""So many agents that are cut from some other are tried in every combination; more are thinned out one by one."""
_FIRST_PAUSE_S = 5.0
_LONGEST_PAUSE_S = 60.0


def cuts_among(members: Iterable[Member]) -> dict[str, set[str]]:
    """For each agent that is cut from another of these: from which. A cut counts for both, whoever names it."""
    unreachable = {member.agent: member.unreachable for member in members}
    cuts: dict[str, set[str]] = {}
    for agent, others in unreachable.items():
        for other in others:
            if other in unreachable and other != agent:
                cuts.setdefault(agent, set()).add(other)
                cuts.setdefault(other, set()).add(agent)
    return cuts


def largest_side(
    agents: Sequence[str], *, cuts: Mapping[str, AbstractSet[str]], most: int, survivors: AbstractSet[str], leader: str
) -> frozenset[str]:
    """The largest set of agents with no cut between any two.

    Of sets of the same size (above `most` counts as `most`) the one with more survivors, then the leader's side, then
    the one with the earlier agents. With more than EXACT_UP_TO cut agents: drop the one that is cut from the most
    others until no cut is left; of equals a newcomer before a survivor, then one cut from the leader, then the last.
    """
    involved = [agent for agent in agents if cuts.get(agent)]
    free = frozenset(agents) - frozenset(involved)
    if len(involved) > EXACT_UP_TO:
        return free | _thinned(involved, cuts=cuts, survivors=survivors, leader=leader)

    def worth(side: AbstractSet[str]) -> tuple[int, int, bool, list[int]]:
        whole = free | side
        early = [-place for place, agent in enumerate(agents) if agent in whole]
        return (min(len(whole), most), len(whole & survivors), leader in whole, early)

    return free | max(_sides(involved, cuts=cuts), key=worth, default=frozenset())


def pause_s(tries: int) -> float:
    """How long an agent that was left out `tries` times in a row rests before it is tried again."""
    return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(tries - 1, 10))


def _sides(involved: Sequence[str], *, cuts: Mapping[str, AbstractSet[str]]) -> Iterator[frozenset[str]]:
    for chosen in range(1 << len(involved)):
        side = frozenset(agent for place, agent in enumerate(involved) if chosen >> place & 1)
        if not any(cuts[agent] & side for agent in side):
            yield side


def _thinned(
    involved: Sequence[str], *, cuts: Mapping[str, AbstractSet[str]], survivors: AbstractSet[str], leader: str
) -> frozenset[str]:
    left = {agent: len(cuts[agent]) for agent in involved}
    place = {agent: index for index, agent in enumerate(involved)}
    while left:
        worst = max(
            left,
            key=lambda agent: (left[agent], agent not in survivors, leader in cuts[agent], place[agent]),
        )
        if not left[worst]:
            break
        del left[worst]
        for other in cuts[worst]:
            if other in left:
                left[other] -= 1
    return frozenset(left)
