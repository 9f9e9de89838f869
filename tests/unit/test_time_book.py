"""The time book: a job's time by state adds up to all the time there was, and no part ever shrinks."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.events import Cause, NodesAwaited, RoundOpened, RunFinished, WorkerHung
from elastic.metrics.definitions import STATES
from elastic.metrics.time_book import TimeBook
from tests.harness import story


class Book:
    """A book with what it was told, and a clock that is the records' own."""

    def __init__(self):
        self.spent = dict.fromkeys(STATES, 0.0)
        self.book = TimeBook(self._add)

    def _add(self, state, seconds):
        assert seconds >= 0
        self.spent[state] += seconds

    def tell(self, *records):
        for record in records:
            self.book.apply(record, now_s=record.time_s)
        return self

    def parts(self):
        return {state: pytest.approx(seconds) for state, seconds in self.spent.items() if seconds > 1e-9}


def begun(**how):
    """Node a alone: agent at 0, world at 2, its worker has the state at 5, and three steps to 9."""
    book = Book()
    book.tell(story.agent("a", at_s=0.0), *story.world("a", at_s=2.0), *story.begun("a", at_s=3.0))
    for number in (1, 2, 3):
        book.tell(*story.step(number, "a", at_s=6.0 + number, **how))
    return book


def opened(at_s, generation=1):
    return story.record(RoundOpened(cause=Cause.NODE_JOINED, reason="r"), at_s=at_s, generation=generation)


def test_a_start_and_some_steps():
    book = begun()
    assert book.parts() == {"rendezvous": 2, "startup": 2, "restore": 1, "first_step": 2, "productive": 2}


def test_the_step_under_way_when_a_peer_is_lost_was_in_vain_and_so_is_what_is_done_again():
    book = begun()
    book.book.ended(9.5)
    book.tell(*story.world("a", at_s=10.0, generation=2), *story.begun("a", at_s=10.0, generation=2, iteration=1))
    book.tell(*story.step(2, "a", at_s=13.0, generation=2))
    assert book.book.state == "recompute"  # step 3 was there before
    book.tell(*story.step(3, "a", at_s=14.0, generation=2))
    assert book.book.state == "productive"
    book.tell(*story.step(4, "a", at_s=16.0, generation=2))
    assert book.spent["recompute"] == pytest.approx(0.5 + 1)  # the half step that was lost, and step 3
    assert book.spent["productive"] == pytest.approx(2 + 2)
    assert sum(book.spent.values()) == pytest.approx(16)


def test_a_planned_end_loses_nothing_of_the_step_that_is_finished_after_it():
    book = begun()
    book.tell(opened(9.6), *story.step(4, "a", at_s=10.0))
    book.tell(*story.world("a", at_s=11.0, generation=2), *story.begun("a", at_s=11.0, generation=2, iteration=4))
    book.tell(*story.step(5, "a", at_s=14.0, generation=2), *story.step(6, "a", at_s=15.0, generation=2))
    assert book.spent["recompute"] == 0
    assert book.spent["productive"] == pytest.approx(2 + 0.6 + 1)


def test_waiting_for_data_and_for_saves_is_told_apart():
    book = begun()
    (step,) = story.step(4, "a", at_s=10.0)
    waited = dataclasses.replace(step.event, data_s=0.3, save_s=0.2)
    book.tell(dataclasses.replace(step, event=waited))
    assert book.book.owed_s == pytest.approx(0.5)
    book.tell(*story.step(5, "a", at_s=11.0))
    assert (book.spent["data_wait"], book.spent["checkpoint_stall"]) == (pytest.approx(0.3), pytest.approx(0.2))
    assert book.spent["productive"] == pytest.approx(2 + 2 - 0.5)


def test_more_than_there_was_is_never_taken_away():
    book = begun()
    (step,) = story.step(4, "a", at_s=10.0)
    book.tell(dataclasses.replace(step, event=dataclasses.replace(step.event, data_s=50.0, save_s=50.0)))
    assert book.book.owed_s == pytest.approx(1.0)


def test_a_hang_is_no_work():
    book = begun()
    hung = WorkerHung(pid=1, doing="step", seconds=60.0, reason="r", stacks="s")
    book.tell(story.record(hung, at_s=70.0))
    book.book.ended(70.0)
    book.tell(*story.world("a", at_s=71.0, generation=2), *story.begun("a", at_s=71.0, generation=2, iteration=3))
    for number in range(4, 80):
        book.tell(*story.step(number, "a", at_s=70.0 + number, generation=2))
    assert book.spent["hang"] == pytest.approx(60)
    assert book.spent["recompute"] == pytest.approx(1.0)


def test_waiting_for_nodes_and_the_end():
    book = begun()
    book.tell(opened(10.0), story.record(NodesAwaited(here=1, needed=2, reason="r"), at_s=11.0))
    book.tell(*story.world("a", "b", at_s=15.0, generation=2))
    book.tell(story.record(RunFinished(iteration=3, consumed_samples=1), at_s=16.0, rank=0, generation=2))
    book.book.book(20.0)
    assert (book.spent["waiting"], book.spent["idle"]) == (4, 4)


def test_a_paused_job_is_told_apart_and_its_last_step_was_not_in_vain():
    book = begun()
    book.book.ended(9.5)
    book.tell(story.record(RoundOpened(cause=Cause.PAUSED, reason="r"), at_s=9.6), *story.step(4, "a", at_s=10.0))
    book.tell(*story.world("a", at_s=5000.0, generation=2, cause=Cause.PAUSED))
    book.tell(*story.begun("a", at_s=5000.0, generation=2, iteration=4), *story.step(5, "a", at_s=5003.0, generation=2))
    assert book.spent["paused"] == pytest.approx(4990.4)
    assert book.spent["recompute"] == 0
    assert sum(book.spent.values()) == pytest.approx(5003.0)


def test_a_book_goes_on_from_another_ones():
    book = begun()
    book.book.adopt(state="restore", gap_s=3.0, furthest=40, patience_s=15.0)
    book.book.adopt(state="productive", gap_s=100.0, furthest=2, patience_s=15.0)
    book.book.adopt(state="asleep", gap_s=1.0, furthest=2, patience_s=15.0)
    assert (book.spent["restore"], book.spent["down"], book.book.furthest) == (1 + 3, 101, 40)


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 5), st.floats(0, 3)), max_size=40))
def test_whatever_happens_it_adds_up(happenings):
    book, now_s, generation, iteration = Book(), 0.0, 1, 0
    book.tell(story.agent("a", at_s=0.0))
    for what, passed_s, waited_s in happenings:
        now_s += passed_s
        if what == 0:
            generation += 1
            book.tell(*story.world("a", at_s=now_s, generation=generation))
        elif what == 1:
            book.tell(*story.begun("a", at_s=now_s, generation=generation, iteration=iteration // 2))
            now_s, iteration = now_s + 2, iteration // 2
        elif what in (2, 3):
            iteration += 1
            (step,) = story.step(iteration, "a", at_s=now_s, generation=generation)
            event = dataclasses.replace(step.event, data_s=waited_s, save_s=waited_s / 2)
            book.tell(dataclasses.replace(step, event=event))
        elif what == 4:
            book.book.ended(now_s)
        else:
            book.book.book(now_s)
        book.book.book(now_s)
        assert sum(book.spent.values()) == pytest.approx(now_s)
        assert book.book.owed_s <= book.spent["productive"] + 1e-9
