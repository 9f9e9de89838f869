"""Clouds' notices, from a server on loopback that answers as theirs do."""

import logging
import threading

import pytest

from elastic.clock import SYSTEM_CLOCK
from elastic.config.choices import Notices
from elastic.launch.notices import ADDRESSES, NoticeWatch, told_by_aws, told_by_gcp
from tests.harness.metadata import Metadata

LIMIT_S = 10


@pytest.fixture
def cloud():
    with Metadata() as cloud:
        yield cloud


@pytest.fixture
def watch(cloud):
    """Starts a watch; an event that is set when it has heard, and what it heard."""
    watches = []

    def start(kind, *, wait_s=5.0, address=None):
        heard, done = [], threading.Event()

        def on_notice(reason):
            heard.append(reason)
            done.set()

        made = NoticeWatch(kind, address=address or cloud.address, pause_s=0.01, wait_s=wait_s, on_notice=on_notice)
        watches.append(made)
        made.start()
        return made, heard, done

    yield start
    for each in watches:
        each.stop()


@pytest.mark.parametrize(("kind", "words"), [(Notices.AWS, "AWS will terminate"), (Notices.GCP, "GCP preempts")])
def test_a_notice_is_heard_once_and_then_nobody_asks(cloud, watch, kind, words):
    _, heard, done = watch(kind)
    cloud.wait_for_requests(3 if kind is Notices.AWS else 2)
    assert not heard
    cloud.notice()
    assert done.wait(LIMIT_S)
    assert len(heard) == 1
    assert words in heard[0]
    assert cloud.noticed == 1


@pytest.mark.parametrize("kind", [Notices.AWS, Notices.GCP])
def test_a_notice_that_was_there_before_is_heard(cloud, watch, kind):
    cloud.notice()
    assert watch(kind)[2].wait(LIMIT_S)


def test_a_token_that_has_run_out_is_taken_anew(cloud, watch):
    _, _, done = watch(Notices.AWS)
    cloud.wait_for_requests(3)
    cloud.forget_tokens()
    cloud.wait_for_requests(len(cloud.requests) + 4)
    cloud.notice()
    assert done.wait(LIMIT_S)
    assert cloud.requests.count("PUT /latest/api/token") == 2


@pytest.mark.parametrize("kind", [Notices.AWS, Notices.GCP])
def test_a_server_out_of_order_is_told_of_once_and_asked_again(cloud, watch, kind, caplog):
    cloud.broken = True
    with caplog.at_level(logging.WARNING, logger="elastic"):
        _, heard, done = watch(kind)
        cloud.wait_for_requests(4)
        assert not heard
        cloud.broken = False
        cloud.notice()
        assert done.wait(LIMIT_S)
    assert caplog.text.count("does not tell of notices") == 1


def test_nobody_there_is_no_notice(watch):
    made, heard, _ = watch(Notices.AWS, address="http://127.0.0.1:1")
    made.stop()
    assert not heard


def test_a_stop_does_not_wait_for_a_change(cloud, watch):
    made, heard, _ = watch(Notices.GCP, wait_s=60.0)
    cloud.wait_for_requests(2)
    began_s = SYSTEM_CLOCK.monotonic_s()
    made.stop()
    assert SYSTEM_CLOCK.monotonic_s() - began_s < 5
    assert not heard


def test_the_clouds_own_addresses_are_never_asked_here():
    assert set(ADDRESSES) == {Notices.AWS, Notices.GCP}


@pytest.mark.parametrize("body", ["", "null", "[]", "{}", '{"action": "stop"}', "<html>"])
def test_what_is_no_instance_action_is_no_notice(body):
    with pytest.raises(ValueError, match="no instance action"):
        told_by_aws(body)


def test_words_of_gcp():
    assert told_by_gcp("FALSE\n") == ""
    assert told_by_gcp("TRUE") == "GCP preempts this machine"
    with pytest.raises(ValueError, match="neither TRUE nor FALSE"):
        told_by_gcp("<html>")
