"""Following a run's events: several files, torn lines, waiting with a deadline."""

import threading

import pytest

from elastic.clock import ManualClock
from elastic.errors import ElasticError
from elastic.events import Notice, Record, encode
from elastic.local.follow import Follower, NotSeen
from elastic.local.node import children, descendants


def line(text, *, node="a"):
    return encode(Record(time_s=1.0, node=node, rank=0, generation=1, event=Notice(text=text))) + "\n"


def texts(follower):
    return [record.event.text for record in follower.records]


@pytest.fixture
def place(tmp_path):
    return tmp_path / "run" / "events"


def write(place, name, data):
    with (place / f"{name}.jsonl").open("a") as file:
        file.write(data)


def test_records_of_several_files_each_once(place):
    seen = []
    with Follower(place, on_record=lambda record: seen.append(record.event.text)) as follower:
        write(place, "b", line("b1"))
        write(place, "a", line("a1") + line("a2 \u2028 ü"))
        follower.read()
        write(place, "b", line("b2"))
        follower.read()
        follower.read()
        (place / "other.txt").write_text("not an event")
        follower.read()
    assert texts(follower) == seen == ["a1", "a2 \u2028 ü", "b1", "b2"]


def test_a_line_still_being_written_waits_for_its_end(place):
    with Follower(place) as follower:
        whole = line("torn")
        write(place, "a", line("first") + whole[:20])
        follower.read()
        assert texts(follower) == ["first"]
        write(place, "a", whole[20:])
        follower.read()
        assert texts(follower) == ["first", "torn"]


def test_events_of_a_later_version_are_told_as_unknown(place):
    with Follower(place) as follower:
        write(place, "a", line("x").replace('"notice"', '"from_the_future"') + line("y"))
        follower.read()
    future, known = (record.event for record in follower.records)
    assert (future.kind, future.name, known.text) == ("unknown", "from_the_future", "y")


def test_waiting_wakes_at_the_write(place):
    with Follower(place) as follower:
        write(place, "a", line("early"))
        timer = threading.Timer(0.05, write, args=(place, "a", line("late")))
        timer.start()
        found = follower.wait_for(lambda r: r.event.text == "late", what="a late word", limit_s=30)
        timer.join()
        assert found.event.text == "late"
        assert follower.wait_for(lambda r: True, what="the first", limit_s=0).event.text == "early"
        with pytest.raises(NotSeen):
            follower.wait_for(lambda r: r.event.text == "early", what="a repetition", limit_s=0, since=1)


def test_the_deadline_names_what_did_not_happen_and_what_did(place):
    class Rushing(ManualClock):
        def monotonic_s(self):
            self.now_s += 3.0
            return self.now_s

    with Follower(place, clock=Rushing()) as follower:
        with pytest.raises(NotSeen, match=r"step 5 did not happen within 2 s; last seen: nothing"):
            follower.wait_for(lambda r: False, what="step 5", limit_s=2)
        write(place, "a", line("x"))
        with pytest.raises(NotSeen, match="last seen: a/0 notice"):
            follower.wait_for(lambda r: False, what="step 5", limit_s=2)


def test_waiting_that_has_become_pointless_ends_early(place):
    def alive():
        raise ElasticError("everybody has gone")

    with Follower(place) as follower, pytest.raises(ElasticError, match="everybody"):
        follower.wait_for(lambda r: False, what="x", limit_s=600, alive=alive)


def test_what_was_written_before_the_last_node_ended_still_counts(place):
    def alive():
        write(place, "a", line("last words"))
        raise ElasticError("everybody has gone")

    with Follower(place) as follower:
        assert follower.wait_for(lambda r: True, what="x", limit_s=600, alive=alive).event.text == "last words"


def test_a_process_that_is_not_there_has_no_children():
    assert children(2**22 + 1) == []
    assert descendants(2**22 + 1) == []
