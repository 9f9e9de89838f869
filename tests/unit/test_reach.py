"""Which side of a cut goes on: exact where few are cut, by a stated rule where many are."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.rendezvous.gathering import barred_pause_s
from elastic.rendezvous.model import Member
from elastic.rendezvous.reach import EXACT_UP_TO, cuts_among, largest_side, pause_s

AGENTS = [f"a{number}" for number in range(8)]
PAIRS = list(itertools.combinations(AGENTS, 2))


def symmetric(pairs):
    cuts = {}
    for one, other in pairs:
        cuts.setdefault(one, set()).add(other)
        cuts.setdefault(other, set()).add(one)
    return cuts


def naive(agents, *, cuts, most, survivors, leader):
    """Every subset, judged by the same words of the rule."""
    best = None
    for size in range(len(agents) + 1):
        for side in itertools.combinations(agents, size):
            if any(other in cuts.get(one, ()) for one, other in itertools.combinations(side, 2)):
                continue
            places = [-agents.index(agent) for agent in side]
            worth = (min(size, most), len(set(side) & survivors), leader in side, places)
            if best is None or worth > best[0]:
                best = (worth, frozenset(side))
    return best[1]


@settings(max_examples=60, deadline=None)
@given(
    pairs=st.sets(st.sampled_from(PAIRS), max_size=12),
    most=st.integers(1, 8),
    survivors=st.sets(st.sampled_from(AGENTS)),
    leader=st.sampled_from([*AGENTS, ""]),
)
def test_small_numbers_are_exact(pairs, most, survivors, leader):
    cuts = symmetric(pairs)
    side = largest_side(AGENTS, cuts=cuts, most=most, survivors=survivors, leader=leader)
    expected = naive(AGENTS, cuts=cuts, most=most, survivors=survivors, leader=leader)
    assert not any(cuts.get(agent, set()) & side for agent in side)
    assert (min(len(side), most), len(side & survivors), leader in side) == (
        min(len(expected), most),
        len(expected & survivors),
        leader in expected,
    )


def test_halves_of_many_go_by_the_leader():
    agents = [f"n{number}" for number in range(200)]
    left, right = agents[:100], agents[100:]
    cuts = {agent: set(right) for agent in left} | {agent: set(left) for agent in right}
    for leader, expected in (("n3", left), ("n150", right)):
        side = largest_side(agents, cuts=cuts, most=500, survivors=frozenset(agents), leader=leader)
        assert side == frozenset(expected)


def test_one_agent_that_names_everybody_is_left_out_alone():
    agents = [f"n{number}" for number in range(EXACT_UP_TO * 3)]
    cuts = symmetric(("n5", other) for other in agents if other != "n5")
    side = largest_side(agents, cuts=cuts, most=500, survivors=frozenset(agents), leader="n5")
    assert side == frozenset(agents) - {"n5"}


def test_a_cut_counts_for_both_and_only_among_those_that_are_there():
    def member(agent, *unreachable):
        return Member(
            agent=agent,
            node=agent,
            address="",
            slots=1,
            probe_port=0,
            store_port=0,
            lease=0,
            unreachable=unreachable,
        )

    assert cuts_among([member("a", "b", "gone", "a"), member("b"), member("c")]) == {"a": {"b"}, "b": {"a"}}


def test_pauses_grow_to_a_minute():
    assert [pause_s(tries) for tries in (1, 2, 3, 4, 5, 6, 100)] == [5, 10, 20, 40, 60, 60, 60]


def test_pauses_after_having_been_barred_grow_to_an_hour():
    assert [barred_pause_s(times) for times in (1, 2, 3, 8, 100)] == [30, 60, 120, 3600, 3600]
