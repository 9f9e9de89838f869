"""Wishes that a node may leave, and the signals that come with them."""

import signal

import pytest
from torch.distributed.elastic.multiprocessing import SignalException

from elastic.config.choices import Notices
from elastic.events import LeaveAsked
from elastic.launch.leaving import Wishes
from elastic.launch.signals import LeaveSignals


@pytest.fixture
def signals():
    made = LeaveSignals(on_signal=lambda: None)
    made.defer()
    return made


def test_the_last_warning_may_come_as_soon_as_anybody_hears_of_the_notice(signals):
    told = []

    def emit(event):
        told.append(event)
        signals.handle(signal.SIGTERM, None)

    Wishes(emit=emit, leave=signals.ask).noticed(Notices.AWS)("it is to go")
    assert told == [LeaveAsked(source="aws", reason="it is to go")]
    assert signals.received == ["a notice (it is to go)"]
    assert not signals.hurried
    with pytest.raises(SignalException, match="a notice"):
        signals.check()
    signals.handle(signal.SIGTERM, None)
    assert signals.hurried


def test_a_wish_after_a_signal_is_told_and_changes_nothing(signals):
    told = []
    signals.handle(signal.SIGTERM, None)
    Wishes(emit=told.append, leave=signals.ask).drained("new disk")
    assert told == [LeaveAsked(source="drain", reason="new disk")]
    assert signals.received == ["SIGTERM"]
