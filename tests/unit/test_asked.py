"""What an agent answers its workers, who may ask from threads that outlive their generation."""

import json
import threading

import pytest

from elastic.clock import SYSTEM_CLOCK
from elastic.launch.asked import Asked

LIMIT_S = 20.0


class SlowDisk:
    """A launch mark on a disk that takes a while."""

    def __init__(self):
        self.asked, self.go = threading.Event(), threading.Event()

    def lost(self):
        self.asked.set()
        assert self.go.wait(LIMIT_S)
        return ""


def record(iteration, *, generation):
    return json.dumps({"iteration": iteration, "generation": generation})


@pytest.fixture
def two(make_job):
    """Two agents of three, and what ends their generation."""
    job = make_job(max_nodes=3, ttl_s=60)
    a, b, c = job.start("a", "b", "c")

    def lose_one():
        c.kill()
        a.fail()
        b.fail()
        job.expect([a, b], size=2, after=1)

    return a, lose_one


def test_a_commit_that_was_asked_for_in_an_older_generation_does_not_count_in_the_next(two):
    agent, lose_one = two
    disk, answers = SlowDisk(), []
    asked = Asked(agent.coordinator, tenure=disk, clock=SYSTEM_CLOCK)
    late = threading.Thread(target=lambda: answers.append(asked.answer("commit", record(10, generation=1))))
    late.start()
    assert disk.asked.wait(LIMIT_S)
    lose_one()
    disk.go.set()
    newer = record(20, generation=2)
    assert asked.answer("commit", newer).granted
    late.join(LIMIT_S)
    (answer,) = answers
    assert not answer.granted
    assert answer.stale
    assert "generation 1 asks" in answer.reason
    assert asked.answer("record", None).value == newer


def test_nor_does_one_of_a_generation_that_this_agent_has_not_joined(two):
    agent, _ = two
    answer = Asked(agent.coordinator, tenure=None, clock=SYSTEM_CLOCK).answer("commit", record(10, generation=2))
    assert not answer.granted
    assert not answer.stale


def test_what_is_no_record_does_not_count(two):
    agent, _ = two
    with pytest.raises(ValueError, match="property name"):
        Asked(agent.coordinator, tenure=None, clock=SYSTEM_CLOCK).answer("commit", "{")
