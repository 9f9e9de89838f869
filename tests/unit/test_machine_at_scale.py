"""What a decision costs grows with the number of agents, never with its square. Calls are counted, never time."""

import cProfile
import dataclasses
import pstats

import pytest

from elastic.events import Cause
from elastic.rendezvous.apart import lay_apart
from elastic.rendezvous.machine import decide
from elastic.rendezvous.membership import AgentIdentity, first_member
from elastic.rendezvous.model import FailureReport, Member, MemberState, ProbeResult, World, world_to_json
from elastic.rendezvous.verdict import Close, Form, Open, Verdict
from elastic.rendezvous.view import LeaderView, Limits, observe, with_probes
from tests.harness.agents import PEER_LOST

FEW, MANY = 200, 800
# Four times as many agents, and a little for sorting.
MOST = 5.0


def asking(nodes: int, *, ended: int = 0, first: int = 0, **fields: object) -> dict[str, Member]:
    found = {}
    for number in range(first, first + nodes):
        identity = AgentIdentity(agent=f"{number:032x}", node=f"node{number}", address="127.0.0.1")
        found[identity.agent] = dataclasses.replace(
            first_member(identity), state=MemberState.JOINING, ended_generation=ended, last_generation=ended, **fields
        )
    return found


def verdict_of(view: LeaderView, *, is_a: type) -> tuple[Verdict, int]:
    """The verdict and how many calls it took."""
    profile = cProfile.Profile(builtins=False)
    verdict = profile.runcall(decide, view, now_s=1000.0)
    assert isinstance(verdict, is_a), verdict
    return verdict, pstats.Stats(profile).total_calls


def view_of(nodes: int, *, members: dict[str, Member], world: World | None = None) -> LeaderView:
    empty = LeaderView(limits=Limits(min_nodes=1, max_nodes=2 * nodes), leader=next(iter(members)))
    return observe(empty, world=world, members=members, now_s=1.0)


def start(nodes: int) -> tuple[Verdict, int]:
    return verdict_of(view_of(nodes, members=asking(nodes)), is_a=Form)


def lose(nodes: int) -> tuple[Verdict, int]:
    members = asking(nodes)
    world = start(nodes)[0].world
    victim = members.popitem()[0]
    view = view_of(nodes, members=members, world=world)
    return verdict_of(with_probes(view, results={victim: ProbeResult.REFUSED}, now_s=2.0), is_a=Open)


def form_anew(nodes: int) -> tuple[Verdict, int]:
    """Half of them are newcomers, and all that were there report what they lost."""
    opened = lose(nodes)[0].world
    back = asking(nodes - 1, ended=1, report=PEER_LOST)
    return verdict_of(view_of(nodes, members=back | asking(nodes, first=nodes), world=opened), is_a=Form)


def hear_complaints(nodes: int) -> tuple[Verdict, int]:
    """One half is done; the others do not reach one of theirs."""
    members = asking(nodes)
    world = start(nodes)[0].world
    for number, (agent, member) in enumerate(list(members.items())):
        if number < nodes // 2:
            members[agent] = dataclasses.replace(member, state=MemberState.DONE, ended_generation=1)
        elif number > nodes - 8:
            members[agent] = dataclasses.replace(member, unreachable=(f"{nodes // 2:032x}",), unreachable_in=1)
    return verdict_of(view_of(nodes, members=members, world=world), is_a=Open)


def fail_everywhere(nodes: int) -> tuple[Verdict, int]:
    """The same bug on all nodes."""
    world = start(nodes)[0].world
    report = FailureReport(cause=Cause.WORKER_EXIT, rank=0, step=7, signature="ValueError", committed_steps=1)
    return verdict_of(view_of(nodes, members=asking(nodes, ended=1, report=report), world=world), is_a=Open)


def half_die(nodes: int) -> tuple[Verdict, int]:
    members = asking(nodes)
    world = start(nodes)[0].world
    dead = [members.popitem()[0] for _ in range(nodes // 2)]
    view = view_of(nodes, members=members, world=world)
    return verdict_of(with_probes(view, results=dict.fromkeys(dead, ProbeResult.SILENT), now_s=2.0), is_a=Open)


def all_are_done(nodes: int) -> tuple[Verdict, int]:
    members = {
        agent: dataclasses.replace(member, state=MemberState.DONE, ended_generation=1)
        for agent, member in asking(nodes).items()
    }
    return verdict_of(view_of(nodes, members=members, world=start(nodes)[0].world), is_a=Close)


@pytest.mark.parametrize("case", [start, lose, form_anew, hear_complaints, fail_everywhere, half_die, all_are_done])
def test_what_everyone_is_told_stays_short(case):
    world, _parts = lay_apart(case(MANY)[0].world, before=None)
    assert len(world_to_json(world)) < 5000


@pytest.mark.parametrize("case", [start, lose, form_anew, hear_complaints, fail_everywhere, half_die, all_are_done])
def test_work_is_linear(case):
    (_, few), (_, many) = case(FEW), case(MANY)
    assert many / few < MOST, (few, many)
