"""Stalls: when an agent asks, whom, what it reports, and when its workers must go."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.clock import ManualClock
from elastic.events import Cause
from elastic.launch import stall
from elastic.launch.stall import Ask, GiveUp, Pace, Patience, Situation, decide
from elastic.launch.stall_watch import StallWatch
from elastic.rendezvous.membership import Membership
from elastic.rendezvous.model import Phase, ProbeResult, Seat, World


def paced(*took_s: float) -> Pace:
    pace = Pace(advanced_s=0.0)
    now_s = 10.0
    for step, seconds in enumerate((0.0, *took_s), start=1):
        now_s += seconds
        pace = pace.advanced(step=step, now_s=now_s)
    return pace


def world(count: int) -> World:
    seats = tuple(
        Seat(
            agent=f"agent{n}",
            node=f"n{n}",
            address="127.0.0.1",
            probe_port=1000 + n,
            slots=1,
            group_rank=n,
            base_rank=n,
        )
        for n in range(count)
    )
    return World(
        generation=1,
        phase=Phase.FORMED,
        seats=seats,
        store_address="127.0.0.1",
        store_port=1,
        cause=Cause.START,
        reason="",
    )


@pytest.mark.parametrize(
    ("took_s", "patience_s"), [((), 3.0), ((0.01,), 3.0), ((0.01, 0.01), 0.5), ((2.0, 2.0, 2.0), 6.0)]
)
def test_patience_follows_the_steps(took_s, patience_s):
    assert paced(*took_s).patience_s == pytest.approx(patience_s)


def test_a_long_save_makes_patient_for_a_while_only():
    pace = paced(0.1, 0.1, 4.0)
    assert pace.patience_s > 4
    for step in range(5, 60):
        pace = pace.advanced(step=step, now_s=pace.advanced_s + 0.1)
    assert pace.patience_s == pytest.approx(0.5)


def test_patience_is_looked_at_anew_as_steps_become_known():
    """Frozen after the first steps of a generation: found by how long these took, not by what was guessed before."""
    fresh = paced()
    now_s = fresh.advanced_s
    verdict = decide(Situation(now_s=now_s, pace=fresh, peers=2))
    assert isinstance(verdict, Patience)
    known = paced(0.03, 0.03, 0.03)
    verdict = decide(Situation(now_s=verdict.until_s, pace=known, peers=2))
    assert isinstance(verdict, Patience)
    assert verdict.until_s <= known.advanced_s + stall.LEAST_PATIENCE_S


def test_other_ranks_of_one_step_do_not_count_as_steps():
    pace = paced(1.0, 1.0)
    again = pace.advanced(step=pace.step, now_s=pace.advanced_s + 0.001)
    assert again.mean_step_s == pace.mean_step_s


@given(quiet_s=st.floats(0, 100), unconfirmed_s=st.none() | st.floats(0, 400), silent=st.none() | st.integers(0, 3))
def test_what_is_decided(quiet_s, unconfirmed_s, silent):
    pace = paced(0.1, 0.1, 0.1)
    now_s = pace.advanced_s + quiet_s
    verdict = decide(
        Situation(
            now_s=now_s,
            pace=pace,
            peers=3,
            asked_s=None if silent is None else now_s - 0.5,
            silent=None if silent is None else frozenset(str(n) for n in range(silent)),
            unconfirmed_since_s=None if unconfirmed_s is None else now_s - unconfirmed_s,
        )
    )
    stalled = quiet_s >= pace.patience_s
    too_long = unconfirmed_s is not None and unconfirmed_s >= 300
    alone = unconfirmed_s is not None and stalled and silent == 3
    assert isinstance(verdict, GiveUp) == (too_long or alone)
    if isinstance(verdict, Patience):
        assert verdict.until_s > now_s
    if isinstance(verdict, Ask):
        assert stalled
        assert silent is None


def test_a_confirmed_agent_never_gives_up():
    pace = paced(0.1, 0.1)
    found = Situation(now_s=1e6, pace=pace, peers=2, asked_s=1e6, silent=frozenset({"x", "y"}))
    assert not isinstance(decide(found), GiveUp)


def test_each_asks_few_and_is_asked_by_as_many():
    seats = [f"agent{n}" for n in range(100)]
    asked = {agent: set(stall.targets(world(100), agent=agent)) for agent in seats}
    assert {len(others) for others in asked.values()} == {stall.MOST_PEERS}
    assert all(agent in asked[other] for agent in seats for other in asked[agent])
    assert set(stall.targets(world(3), agent="agent1")) == {"agent0", "agent2"}
    assert stall.targets(world(3), agent="nobody") == {}


def test_a_stopped_process_is_known_by_its_state(tmp_path: Path):
    for pid, line in ((1, "1 (a) b) T 0"), (2, "2 (x) S 0"), (3, "3 (gdb) t 0"), (4, "")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(line)
    assert stall.stopped([1, 2, 3, 4, 5], proc=tmp_path) == (1,)


class FakeCoordinator:
    def __init__(self) -> None:
        self.lease_valid_until_s = 1e9
        self.reports: list[frozenset[str]] = []

    def report_unreachable(self, agents: frozenset[str]) -> None:
        self.reports.append(frozenset(agents))


def watching(coordinator: FakeCoordinator, *, clock: ManualClock, pace, probe) -> StallWatch:
    watch, agreed = StallWatch(coordinator, pace=pace, unconfirmed_limit_s=300, clock=clock, probe=probe), world(3)
    seat = agreed.seats[0]
    watch.begin(
        Membership(
            generation=1, world=agreed, seat=seat, store_address="", store_port=0, seconds=0, store=None, leader=True
        )
    )
    return watch


def test_who_answers_late_while_a_step_is_done_is_only_busy():
    clock, coordinator = ManualClock(100.0), FakeCoordinator()
    pace, asked = [paced(0.1, 0.1)], []

    def probe(places, silence_s):
        asked.append(places)
        clock.now_s += silence_s
        pace[0] = pace[0].advanced(step=9, now_s=clock.now_s - 0.1)
        return dict.fromkeys(places, ProbeResult.SILENT)

    watch = watching(coordinator, clock=clock, pace=lambda: pace[0], probe=probe)
    watch.look([])
    assert (len(asked), coordinator.reports, watch.blames) == (1, [], False)
    clock.now_s = watch.look([]).until_s
    assert len(asked) == 1


def test_a_worker_s_word_that_is_no_step_excuses_nobody():
    """Its thread may tell of a save while the step waits for the one that is frozen."""
    clock, coordinator = ManualClock(100.0), FakeCoordinator()
    pace = [paced(0.1, 0.1)]

    def probe(places, silence_s):
        pace[0] = pace[0].advanced(step=None, now_s=clock.now_s)
        return {a: ProbeResult.SILENT if a == "agent2" else ProbeResult.ALIVE for a in places}

    watching(coordinator, clock=clock, pace=lambda: pace[0], probe=probe).look([])
    assert coordinator.reports == [{"agent2"}]


def test_what_is_silent_is_reported_once_and_taken_back():
    clock, coordinator = ManualClock(100.0), FakeCoordinator()
    pace = [paced(0.1, 0.1)]
    silent = [{"agent2"}]

    def probe(places, silence_s):
        assert silence_s == stall.SILENCE_S
        return {a: ProbeResult.SILENT if a in silent[0] else ProbeResult.ALIVE for a in places}

    watch = watching(coordinator, clock=clock, pace=lambda: pace[0], probe=probe)
    assert watch.look([]).give_up == ""
    assert coordinator.reports == [{"agent2"}]
    assert watch.blames
    clock.now_s = watch.look([]).until_s
    watch.look([])
    assert coordinator.reports == [{"agent2"}], "the same is not told twice"
    pace[0] = pace[0].advanced(step=9, now_s=clock.now_s + 0.1)
    clock.now_s += 0.2
    watch.look([])
    assert coordinator.reports == [{"agent2"}, frozenset()]
    assert not watch.blames
    coordinator.lease_valid_until_s = clock.now_s
    silent[0] = {"agent1", "agent2"}
    clock.now_s += 5
    while not (found := watch.look([])).give_up:
        clock.now_s = max(clock.now_s, found.until_s)
    assert "cut off" in found.give_up
