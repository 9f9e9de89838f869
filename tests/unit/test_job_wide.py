"""What is of the whole job comes from the leader alone, and goes on when another agent leads."""

import dataclasses

import pytest

from elastic.clock import ManualClock
from elastic.events import Cause, Direction, Recovered, Rescaled, RoundOpened, WishHeard, WorkerStarted, WorldFormed
from elastic.metrics import definitions as of
from elastic.metrics.fold import Metrics
from elastic.metrics.job_wide import FIRST_SHOWN_S
from tests.harness import story
from tests.harness.scrape import of_families, samples

STEPS = ("elastic_steps_committed_total",)
DOWN = ("elastic_rescales_total", ("cause", "node_lost"), ("direction", "down"))
LOST = Rescaled(direction=Direction.DOWN, cause=Cause.NODE_LOST, old_world_size=2, new_world_size=1)


class Agent:
    """One agent's metrics, with a leadership that the test gives and takes."""

    def __init__(self, name, clock):
        self.name, self.leads, self._clock = name, False, clock
        self.metrics = Metrics(clock=clock, is_leader=lambda: self.leads)

    def hear(self, *records):
        for record in records:
            if record.node == self.name:
                self._clock.now_s = max(self._clock.now_s, record.time_s)
                self.metrics.apply(record)

    def told(self, event, *, generation=2):
        self.metrics.apply(story.record(event, at_s=self._clock.now_s, node=self.name, generation=generation))

    def scrape(self, reader=None):
        return of_families(self.metrics.collect(reader))


@pytest.fixture
def two():
    """a leads, b follows; both took ten steps in ten seconds."""
    clock = ManualClock(0.0)
    a, b = Agent("a", clock), Agent("b", clock)
    a.leads = True
    run = [story.agent("a", at_s=0.0), story.agent("b", at_s=0.0), *story.world("a", "b", at_s=1.0)]
    run += story.begun("a", "b", at_s=2.0)
    for iteration in range(1, 11):
        run += story.step(iteration, "a", "b", at_s=4.0 + iteration)
    for record in run:
        a.hear(record)
        b.hear(record)
    return a, b, clock


def test_a_sum_over_agents_counts_nothing_twice_and_goes_on_with_the_next_leader(two):
    a, b, clock = two
    assert (a.scrape()[STEPS], STEPS in b.scrape()) == (10, False)
    a.leads = False
    clock.now_s = 16.0
    b.metrics.generation_ended()
    b.leads = True
    b.told(LOST)
    found = b.scrape()
    assert STEPS not in a.scrape()
    assert (found[STEPS], found[DOWN]) == (10, 1)
    times = [value for key, value in found.items() if key[0] == "elastic_time_seconds_total"]
    assert sum(times) == pytest.approx(16.0)


def test_a_scraper_first_sees_what_was_counted_before_the_leader_was_lost(two):
    _, b, clock = two
    b.leads = True
    b.told(LOST)
    assert [b.scrape("prometheus")[DOWN] for _ in range(3)] == [0, 1, 1]
    assert b.scrape("another one")[DOWN] == 0
    assert b.scrape()[DOWN] == 1  # a person
    clock.now_s += FIRST_SHOWN_S
    assert b.scrape("a late one")[DOWN] == 1


def test_who_leads_again_begins_again(two):
    a, _, _ = two
    assert a.scrape("prometheus")[STEPS] == 0
    a.leads = False
    assert STEPS not in a.scrape("prometheus")
    a.leads = True
    a.told(LOST)
    assert [a.scrape("prometheus")[DOWN] for _ in range(2)] == [0, 1]


def test_of_several_workers_of_a_node_one_counts():
    clock = ManualClock(0.0)
    a = Agent("a", clock)
    a.leads = True
    a.hear(*story.world("a", at_s=1.0))
    for rank in (1, 0):
        a.told(WorkerStarted(worker_rank=rank, pid=10 + rank, path="refork"), generation=1)
    for iteration in (1, 2):
        for step in story.step(iteration, "a", "b", at_s=1.0 + iteration):
            a.hear(dataclasses.replace(step, node="a"))
    assert a.scrape()[STEPS] == 2


def test_a_last_word_of_the_generation_before_makes_nobody_the_speaker():
    a = Agent("a", ManualClock(0.0))
    a.leads = True
    a.hear(*story.world("a", "b", at_s=1.0), *story.step(1, "a", "b", at_s=2.0))
    (_, formed) = story.world("b", "a", at_s=3.0, generation=2)
    a.hear(formed, *story.step(2, "a", "b", at_s=3.1))  # still of the first, as rank 0
    a.told(WorkerStarted(worker_rank=1, pid=11, path="refork"))
    _, second = story.step(3, "b", "a", at_s=5.0, generation=2)
    a.hear(second)
    assert a.scrape()[STEPS] == 2


def test_samples_that_are_used_again_or_passed_by_are_seen(two):
    a, b, _ = two
    for agent in (a, b):
        agent.leads = True
    used_again, passed_by = story.step(10, "a", "b", at_s=20.0), story.step(13, "a", "b", at_s=20.0)
    a.hear(*used_again)
    b.hear(*passed_by)
    found = [
        (samples(x.metrics)["elastic_samples_replayed_total",], samples(x.metrics)["elastic_samples_missed_total",])
        for x in (a, b)
    ]
    assert found == [(story.BATCH, 0), (0, 2 * story.BATCH)]


def test_going_back_to_an_older_state_is_neither(two):
    a, _, _ = two
    a.hear(*story.world("a", at_s=20.0, generation=2), *story.begun("a", at_s=20.0, generation=2, iteration=8))
    a.hear(*story.step(9, "a", at_s=23.0, generation=2))
    a.told(Recovered(cause=Cause.NODE_LOST, path="refork", seconds=3.0, lost_steps=2))
    found = a.scrape()
    assert (found["elastic_samples_replayed_total",], found["elastic_samples_missed_total",]) == (0, 0)
    assert found["elastic_lost_steps_total",] == 2


def test_the_budget_is_full_again_behind_the_step_that_failed(two):
    a, _, _ = two
    (world,) = story.world("a", at_s=20.0, generation=2)
    spent = dataclasses.replace(world.event, budget=(("worker", 1, 3), ("peer", 10, 10)), budget_step=11)
    a.hear(dataclasses.replace(world, event=spent), *story.begun("a", at_s=20.0, generation=2, iteration=10))
    seen = []
    for iteration in (11, 12, 13):
        a.hear(*story.step(iteration, "a", at_s=12.0 + iteration, generation=2))
        seen.append(a.scrape()["elastic_restart_budget_remaining", ("reason", "worker")])
    assert seen == [1, 3, 3]


def test_what_another_agent_counted_is_taken_over_whole(two):
    a, b, clock = two
    a.told(LOST)
    newcomer = Agent("c", clock)
    newcomer.metrics.adopt_job(a.metrics.job_plain(), gap_s=4.0)
    newcomer.leads = True
    found = newcomer.scrape()
    assert (found[STEPS], found[DOWN]) == (10, 1)
    times = {key[1][1]: value for key, value in found.items() if key[0] == "elastic_time_seconds_total"}
    before = {key[1][1]: value for key, value in a.scrape().items() if key[0] == "elastic_time_seconds_total"}
    assert times == before | {"productive": before["productive"] + 4.0}
    b.leads = True
    b.scrape()
    b.metrics.adopt_job(newcomer.metrics.job_plain(), gap_s=0.0)
    assert b.scrape()[DOWN] == 0  # who shows its own already keeps it


@pytest.mark.parametrize(
    "plain",
    [{}, {"state": "x", "furthest": "y", "values": {}}, {"state": "x", "furthest": 1, "values": {of.TIME.name: [7]}}],
)
def test_what_is_none_of_ours_changes_nothing(plain):
    agent = Agent("a", ManualClock(0.0))
    with pytest.raises((KeyError, TypeError, ValueError)):
        agent.metrics.adopt_job(plain, gap_s=0.0)


def test_two_hundred_generations_cost_no_series_and_no_bytes(two):
    a, _, clock = two
    before = a.metrics.job_plain()
    for generation in range(2, 202):
        formed = story.world("a", "b", at_s=clock.now_s + 1, generation=generation)[0]
        assert isinstance(formed.event, WorldFormed)
        a.hear(formed, *story.begun("a", at_s=clock.now_s, generation=generation, iteration=9))
        a.hear(*story.step(10, "a", at_s=clock.now_s + 3, generation=generation))
        a.told(Recovered(cause=Cause.PEER_LOST, path="rejoin", seconds=0.5, lost_steps=1))
    after = a.metrics.job_plain()
    assert {name: len(rows) for name, rows in after["values"].items()} == {
        name: len(rows) for name, rows in before["values"].items()
    }


def test_how_many_nodes_are_wanted_follows_a_persons_wish_and_a_paused_job_is_not_to_train(two):
    a, _b, _clock = two
    target, active = ("elastic_target_nodes",), ("elastic_job_active",)
    a.told(WishHeard(what="scale", min_nodes=1, max_nodes=3, reason="ann"))
    assert (a.scrape()[target], a.scrape()[active]) == (3, 1)
    a.told(RoundOpened(cause=Cause.PAUSED, reason="paused (ann)"))
    assert a.scrape()[active] == 0
    (formed,) = story.world("a", at_s=60.0, generation=2, cause=Cause.PAUSED)
    a.told(dataclasses.replace(formed.event, most_nodes=2))
    assert (a.scrape()[target], a.scrape()[active]) == (2, 1)
