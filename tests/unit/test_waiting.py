"""When a collective is waited for on, and when it is given up."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from elastic.distributed.waiting import IN_VAIN, Beside, finished, keep, unfinished


class Late:
    """A collective that is done, or has failed, at the n-th look."""

    def __init__(self, looks: float, *, fails: bool = False) -> None:
        self.looks, self.fails, self.seen = looks, fails, 0

    def wait(self, timeout: timedelta = timedelta.max) -> None:
        self.seen += 1
        if not self.is_completed():
            raise RuntimeError("Operation timed out!")
        if self.fails:
            raise RuntimeError("Connection closed by peer")

    def is_completed(self) -> bool:
        return self.seen >= self.looks


def test_while_the_group_is_there_it_is_waited_for():
    work = Late(50)
    assert finished(work, over=lambda: False)
    assert work.seen == 50


def test_what_ends_soon_after_the_group_is_not_given_up():
    assert finished(Late(IN_VAIN), over=lambda: True)


def test_what_does_not_end_after_the_group_is_given_up():
    work = Late(float("inf"))
    assert not finished(work, over=lambda: work.seen > 10)
    assert work.seen == 10 + IN_VAIN


def test_only_looks_on_end_count():
    work = Late(20)
    assert finished(work, over=lambda: work.seen % IN_VAIN != 0)


@pytest.mark.parametrize("looks", [1, 7])
def test_a_failure_is_told(looks):
    with pytest.raises(RuntimeError, match="Connection closed"):
        finished(Late(looks, fails=True), over=lambda: False)


def test_what_is_left_of_a_group_is_found_with_one_wait():
    never, also_never = Late(float("inf")), Late(float("inf"))
    works = [Late(1), Late(1, fails=True), never, also_never]
    assert unfinished(works) == [never, also_never]
    assert (never.seen, also_never.seen) == (IN_VAIN, 0)


class Held:
    """Ends at a word."""

    def __init__(self) -> None:
        self.may_end, self.fails = threading.Event(), False

    def wait(self, timeout: timedelta = timedelta.max) -> None:
        assert self.may_end.wait(10)
        if self.fails:
            raise RuntimeError("Connection closed by peer")

    def is_completed(self) -> bool:
        return self.may_end.is_set()


@pytest.mark.parametrize("fails", [False, True])
def test_a_wait_without_limits_gets_some(fails):
    held = Held()
    held.fails = fails
    work = Beside(held)
    with pytest.raises(RuntimeError, match="not done yet"):
        work.wait(timedelta(seconds=0.001))
    assert not work.is_completed()
    held.may_end.set()
    if fails:
        with pytest.raises(RuntimeError, match="Connection closed"):
            work.wait()
    else:
        work.wait()
    assert work.is_completed()


def test_what_is_kept_goes_when_it_has_ended():
    class Group:
        gone = threading.Event()

        def __del__(self) -> None:
            self.gone.set()

    failed, held = Held(), Held()
    failed.fails = True
    failed.may_end.set()
    keep([failed, held], group=Group())
    assert not Group.gone.is_set()
    held.may_end.set()
    assert Group.gone.wait(10)
