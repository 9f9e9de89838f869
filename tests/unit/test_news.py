"""Who waits for thousands is woken by the last of them, or by what cannot wait."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from elastic.rendezvous.news import News


class Members:
    """A count of what was written, and the news of it."""

    def __init__(self):
        self.unread = 0
        self.looked = threading.Event()
        self.news = News(unread=self._looked)

    def _looked(self):
        self.looked.set()
        return self.unread

    def write(self):
        self.unread += 1
        self.news.written()


@pytest.fixture
def members():
    return Members()


@pytest.fixture
def waiting(members):
    """Begins to wait for so many, and returns once somebody really waits."""
    with ThreadPoolExecutor(max_workers=1) as pool:

        def begin(enough, limit_s=10.0):
            members.looked.clear()
            future = pool.submit(members.news.wait, limit_s, enough=enough)
            assert members.looked.wait(10)
            return future

        yield begin


def test_the_last_of_many_wakes(members, waiting):
    done = waiting(3)
    members.write()
    members.write()
    assert not done.done()
    members.write()
    assert done.result(10) is True


def test_what_rings_wakes_at_once_until_it_is_looked_at(members, waiting):
    done = waiting(3)
    members.news.ring()
    assert done.result(10) is True
    assert members.news.wait(10, enough=3) is True, "nobody has looked yet"
    members.news.hush()
    assert members.news.wait(0, enough=3) is False


def test_what_was_written_before_counts(members):
    members.write()
    assert members.news.wait(None) is True
    assert members.news.wait(0, enough=2) is False
