"""What a worker tells people: a line for each event, of steps one in a second at most; what all know, rank 0 alone."""

import logging

import pytest

from elastic.clock import ManualClock
from elastic.events import CheckpointFailed, CheckpointSaved, Notice, Restored, RunFinished, decode
from elastic.link import NoLink
from elastic.session.reporter import Reporter
from elastic.world import World
from tests.harness import story


@pytest.fixture
def told(tmp_path, caplog):
    """Tell a rank's events, `pause_s` apart; the lines that people see."""
    caplog.set_level(logging.INFO)

    def tell(events, *, rank=0, pause_s=0.02):
        clock = ManualClock(1000.0)
        world = World(rank=rank, size=2, node="a", events_path=str(tmp_path / "a.jsonl"))
        report = Reporter(world=world, link=NoLink(), save_path=str(tmp_path), clock=clock)
        for event in events:
            report(event)
            clock.sleep(pause_s)
        report.close()
        return [record.getMessage() for record in caplog.records]

    return tell


def steps(count):
    return [story.step(number, "a", at_s=0.0)[0].event for number in range(1, count + 1)]


def test_fifty_steps_a_second_are_a_line_a_second(told, tmp_path):
    lines = told(steps(1000))
    assert 15 <= len(lines) <= 21, "1000 steps in 20 s, of which each tenth may be told"
    assert lines[0].startswith("step 1  loss 2.0000")
    records = [decode(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [record.event.iteration for record in records] == list(range(1, 1001)), "the records have them all"


def test_slow_steps_are_told_each_ten(told):
    lines = told(steps(30), pause_s=5.0)
    assert [line.split("  ")[0] for line in lines] == ["step 1", "step 10", "step 20", "step 30"]


def test_everything_else_is_a_line_and_copies_in_memory_are_none(told):
    copy = story.saved(3, at_s=0.0, tier="memory").event
    events = [
        Restored(tier="none", iteration=0, consumed_samples=0, seconds=0.0, reason="the run begins"),
        *[copy] * 50,
        CheckpointSaved(iteration=5, consumed_samples=9, bytes=1, seconds=0.5, interval_s=None),
        CheckpointFailed(iteration=6, reason="No space left on device"),
        Notice(text="100% of a notice: %s"),
        RunFinished(iteration=9, consumed_samples=99),
    ]
    assert [line.split("  ")[0] for line in told(events)] == [
        "starting from step 0 (the run begins)",
        "saved step 5 in 0.50 s",
        "could NOT save step 6: No space left on device; training goes on",
        "100% of a notice: %s",
        "run finished at step 9, 99 samples",
    ]


def test_other_ranks_say_nothing(told, tmp_path):
    assert told([*steps(20), Notice(text="x")], rank=1) == []
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 21


def restored(tier, *arrived, givers=()):
    return Restored(tier=tier, iteration=7, consumed_samples=9, seconds=3.0, reason="r", arrived=arrived, givers=givers)


def test_where_a_state_came_from_is_told_with_bytes_and_rate(told):
    events = [
        restored("process"),
        restored("memory", ("memory", 12_300_000, 0.0041)),
        restored("disk", ("disk", 2_000_000_000, 4.0), ("peer", 9, 0.0), givers=(1, 2, 3, 4, 5)),
    ]
    assert [line.split("  ")[0] for line in told(events)] == [
        "restored step 7 from process (r)",
        "restored step 7 from memory (r), 12.3 MB from memory in 4.10 ms (3.0 GB/s)",
        "restored step 7 from disk (r), 2.0 GB from disk in 4.00 s (500.0 MB/s), 9 B from ranks 1, 2, 3, 4 and 1 more",
    ]


def test_who_got_its_state_from_a_peer_says_so_on_any_rank(told):
    events = [
        restored("process"),
        restored("disk", ("disk", 5, 1.0)),
        restored("peer", ("peer", 12_300_000, 0.02), givers=(0,)),
    ]
    assert told(events, rank=1) == [
        "restored step 7 from peer (r), 12.3 MB from rank 0 in 0.02 s (615.0 MB/s)  world 2  generation 0"
    ]
