"""Which sockets a cut finds, and what it leaves alone. Real sockets over loopback, no process group."""

import os
import socket
import threading

import pytest

from elastic.distributed.links import Links


@pytest.fixture
def pairs():
    """Makes connected pairs of TCP sockets, and closes them all."""
    made = []

    def pair(family=socket.AF_INET, host="127.0.0.1"):
        with socket.create_server((host, 0), family=family) as server:
            here = socket.create_connection(server.getsockname()[:2])
            there, _ = server.accept()
        made.extend((here, there))
        there.settimeout(5)
        return here, there

    yield pair
    for each in made:
        each.close()


def closed(link):
    """Whether its peer has been shut down, so that nothing more will come."""
    link.settimeout(0.2)
    try:
        return link.recv(1) == b""
    except TimeoutError:
        return False


def test_what_was_opened_since_is_cut_and_what_was_open_before_is_not(pairs):
    old, _ = pairs()
    links = Links()
    _, new = pairs()
    links.settle()
    _, later = pairs()
    assert links.cut() == 2  # both ends of the pair are in this process
    assert closed(new)
    assert not closed(old)
    assert not closed(later)


def test_a_group_that_is_cut_while_it_is_made_is_cut_to_its_end(pairs):
    links = Links()
    _, first = pairs()
    assert not links.is_cut
    links.cut()
    _, second = pairs()
    assert closed(first)
    second.settimeout(5)
    assert second.recv(1) == b"", "what was opened after the cut is cut without being asked for again"
    assert links.is_cut
    links.settle()
    _, later = pairs()
    assert not closed(later)
    assert links.cut() in (0, 4), "from here on only its own"
    assert not closed(later)


def test_a_group_that_was_cut_and_given_up_leaves_no_thread():
    links = Links()
    links.cut()
    links.cut()
    assert [thread.name for thread in threading.enumerate()].count("elastic-links") == 1
    links.settle()
    links.cut()
    assert "elastic-links" not in [thread.name for thread in threading.enumerate()]


def test_both_families_and_nothing_but_tcp(pairs):
    links = Links()
    pairs(socket.AF_INET6, "::1")
    unix, other_unix = socket.socketpair()
    datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with unix, other_unix, datagram:
        links.settle()
        assert links.cut() == 2
        unix.sendall(b"x")
        assert other_unix.recv(1) == b"x"


def test_a_listening_socket_is_left_alone():
    links = Links()
    with socket.create_server(("127.0.0.1", 0)) as server:
        links.settle()
        assert links.cut() == 0
        with socket.create_connection(server.getsockname()):
            server.accept()[0].close()


def test_a_number_that_is_another_sockets_by_now_is_left_alone(pairs):
    links = Links()
    mine, theirs = pairs()
    links.settle()
    numbers = {mine.fileno(), theirs.fileno()}
    mine.close()
    theirs.close()
    again, there = pairs()
    assert {again.fileno(), there.fileno()} & numbers, "the numbers were not used again"
    assert links.cut() == 0
    assert not closed(there)


def test_a_number_that_is_a_file_by_now_is_left_alone(pairs, tmp_path):
    links = Links()
    mine, _ = pairs()
    links.settle()
    number = mine.detach()
    with (tmp_path / "a file").open("w") as file:
        os.dup2(file.fileno(), number)  # closes what was there
        assert links.cut() == 1, "the other end alone"
        assert os.write(number, b"still open")
        os.close(number)


def test_a_second_cut_finds_nothing_more(pairs):
    links = Links()
    pairs()
    links.settle()
    assert links.cut() == 2
    assert links.cut() in (0, 2)
    assert links.is_cut


def test_a_connection_that_is_closed_here_shows(pairs):
    links = Links()
    mine, theirs = pairs()
    with socket.create_server(("127.0.0.1", 0)):
        links.settle()
        theirs.shutdown(socket.SHUT_RDWR)
        assert not links.ended(count=2), "it is for gloo to find out"
        mine.close()
        assert links.ended(count=2)
        assert not links.ended(count=1), "one of them is not the group's"


def test_another_socket_of_the_same_number_does_not_hide_it(pairs):
    links = Links()
    mine, theirs = pairs()
    links.settle()
    mine.close()
    theirs.close()
    pairs()
    assert links.ended(count=2)
