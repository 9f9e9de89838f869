"""Whatever happens in whatever order, the leader keeps its promises."""

from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.events import Cause
from elastic.rendezvous.model import FailureReport, MemberState, Phase, ProbeResult, World
from elastic.rendezvous.verdict import Form
from elastic.rendezvous.view import Limits
from tests.harness.simulation import Simulation

AGENTS = [f"node{number}" for number in range(1, 7)]
VERBS = ["join", "back", "fail", "lose", "leave", "done", "tick", "probe", "settle", "leader-change", "wipe"]
EVENTS = st.lists(
    st.tuples(st.sampled_from(VERBS), st.sampled_from(AGENTS), st.sampled_from(list(ProbeResult))), max_size=60
)


def happen(simulation: Simulation, verb: str, agent: str, result: ProbeResult, step: int) -> None:
    """Do what can happen; what cannot (a member that is not there) is left out."""
    present = agent in simulation.members
    if verb == "join" and not present:
        simulation.join(agent)
    elif verb == "lose":
        simulation.lose(agent)
    elif verb == "tick":
        simulation.tick(2.5)
    elif verb == "probe":
        simulation.probe(agent, result)
    elif verb == "leader-change":
        simulation.change_leader()
    elif verb == "wipe" and simulation.world is not None:
        for name in list(simulation.members):
            simulation.back(name)
        simulation.wipe()
    elif present and simulation.members[agent].state is MemberState.JOINING:
        if verb == "back":
            simulation.back(agent)
        elif verb == "fail":
            report = FailureReport(cause=Cause.WORKER_EXIT, rank=0, step=step, signature="E", committed_steps=1)
            simulation.back(agent, report=report)
        elif verb == "leave":
            simulation.leave(agent)
        elif verb == "done" and simulation.world and simulation.world.seat_of(agent):
            simulation.done(agent)


def check_formed(world: World, *, simulation: Simulation, before: World | None) -> None:
    limits = simulation.limits
    agents = [seat.agent for seat in world.seats]
    assert limits.min_nodes <= len(agents) <= limits.max_nodes
    assert len(set(agents)) == len(agents)
    assert set(agents) <= set(simulation.members), "only live members have a seat"
    assert [seat.group_rank for seat in world.seats] == list(range(len(agents)))
    assert [seat.base_rank for seat in world.seats] == [
        sum(s.slots for s in world.seats[:index]) for index in range(len(agents))
    ]
    if before is not None and before.phase is Phase.OPEN:
        kept = [seat.agent for seat in before.seats if seat.agent in agents]
        assert [agent for agent in agents if agent in kept] == kept, "survivors keep their order"


@settings(max_examples=150, deadline=None)
@given(events=EVENTS, low=st.integers(1, 3), extra=st.integers(0, 2))
def test_invariants(events, low, extra):
    simulation = Simulation(Limits(min_nodes=low, max_nodes=low + extra))
    for step, (verb, agent, result) in enumerate(events):
        happen(simulation, verb, agent, result, step)
        before = simulation.world
        for verdict in simulation.settle():
            assert verdict.reason
            if isinstance(verdict, Form):
                check_formed(verdict.world, simulation=simulation, before=before)
            before = getattr(verdict, "world", before)
    formed = [world.generation for world in simulation.worlds if world.phase is Phase.FORMED]
    assert formed == sorted(set(formed)), "the generation strictly grows"


@settings(max_examples=60, deadline=None)
@given(lost=st.sets(st.sampled_from(AGENTS), max_size=5))
def test_whoever_is_left_goes_on_without_waiting(lost):
    simulation = Simulation(Limits(min_nodes=1, max_nodes=6))
    for agent in AGENTS:
        simulation.join(agent)
    simulation.settle()
    for agent in AGENTS:
        if agent in lost:
            simulation.lose(agent)
        else:
            simulation.back(agent, report=FailureReport(cause=Cause.PEER_LOST, rank=0, step=1, signature=""))
    simulation.settle()
    assert simulation.now_s == 0
    assert [seat.agent for seat in simulation.world.seats] == [agent for agent in AGENTS if agent not in lost]
    assert simulation.world.phase is Phase.FORMED
