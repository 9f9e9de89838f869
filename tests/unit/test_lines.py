"""What workers print becomes lines: whole, clean, each one's in order, and those of several workers as one."""

import itertools
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.launch.lines import LONGEST_BYTES, MOST_HELD, PROGRESS_S, Collapser, Line, Splitter, clean, told


def split(*parts, at_s=0.0):
    splitter = Splitter()
    return [line for part in parts for line in splitter.feed(part, now_s=at_s)] + splitter.end()


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("plain", "plain"),
        ("tab\tstays", "tab\tstays"),
        ("\x1b[31mred\x1b[0m and \x1b]0;title\x07done", "red and done"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\x00b\x07c\x9bd\u202ee", "abcde"),
        ("ünïcode ✓", "ünïcode ✓"),
        ("\x1b", ""),
    ],
)
def test_nothing_that_could_steer_a_terminal_is_left(text, left):
    assert clean(text) == left


@given(st.text())
def test_clean_text_is_clean_whatever_it_was(text):
    assert clean(clean(text)) == clean(text)
    assert not [sign for sign in clean(text) if sign != "\t" and (ord(sign) < 32 or ord(sign) == 127)]


def test_lines_are_put_together_from_any_pieces():
    assert split(b"one\ntw", b"o\r", b"\nthree") == ["one", "two", "three"]
    assert split(b"\n\n  \n") == []
    assert split(b"\xff\xfe broken \xc3", b"\xa4\n") == ["\ufffd\ufffd broken ä"]


@given(st.lists(st.binary(max_size=8), max_size=8))
def test_how_it_is_cut_into_pieces_does_not_matter(parts):
    whole = b"".join(parts).replace(b"\r", b"")
    assert split(*(part.replace(b"\r", b"") for part in parts)) == split(whole)


def test_a_progress_bar_is_told_now_and_then_and_at_its_end():
    splitter = Splitter()
    found = []
    for tick in range(101):
        found += splitter.feed(f"\r{tick} %".encode(), now_s=tick * PROGRESS_S / 20)
    found += splitter.feed(b"\n", now_s=60.0)
    assert len(found) <= 7
    assert found[-1] == "100 %"


def test_a_line_without_an_end_is_cut():
    found = split(b"x" * (3 * LONGEST_BYTES + 5))
    assert [len(line) for line in found] == [LONGEST_BYTES] * 3 + [5]


def say(collapser, rank, *texts, now_s=0.0, stream="stdout"):
    for text in texts:
        collapser.add(Line(time_s=now_s, ranks=(rank,), generation=1, stream=stream, text=text), now_s=now_s)


def heard(collapser, *, now_s=0.0, everybody=3):
    return [(line.ranks, line.text) for line in collapser.due(now_s=now_s, everybody=everybody)]


def test_what_all_say_is_told_at_once_and_once():
    collapser = Collapser(wait_s=0.2)
    for rank in range(3):
        say(collapser, rank, "loading", "ready")
    assert heard(collapser) == [((0, 1, 2), "loading"), ((0, 1, 2), "ready")]


def test_what_some_say_waits_a_moment():
    collapser = Collapser(wait_s=0.2)
    say(collapser, 0, "only me")
    say(collapser, 1, "two of us")
    say(collapser, 2, "two of us", now_s=0.1)
    assert heard(collapser, now_s=0.1) == []
    assert collapser.wait_s(now_s=0.15) == pytest.approx(0.05)
    assert heard(collapser, now_s=0.2) == [((0,), "only me"), ((1, 2), "two of us")]
    assert collapser.wait_s(now_s=1.0) is None


def test_other_streams_and_the_same_line_twice_are_not_mixed():
    collapser = Collapser(wait_s=0.2)
    say(collapser, 0, "x", "x")
    say(collapser, 1, "x", stream="stderr")
    assert [(line.ranks, line.stream) for line in collapser.rest()] == [
        ((0,), "stdout"),
        ((0,), "stdout"),
        ((1,), "stderr"),
    ]


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abc")), max_size=12))
def test_every_workers_lines_come_whole_and_in_its_own_order(said):
    collapser = Collapser(wait_s=0.2)
    for rank, text in said:
        say(collapser, rank, text)
    lines = list(collapser.rest())
    for rank in range(3):
        assert [line.text for line in lines if rank in line.ranks] == [text for who, text in said if who == rank]


def test_a_flood_does_not_wait_and_stays_in_order():
    collapser = Collapser(wait_s=1000.0)
    texts = [f"line {number}" for number in range(3 * MOST_HELD)]
    say(collapser, 0, *texts)
    assert collapser.wait_s(now_s=0.0) == 0.0
    early = heard(collapser)
    assert len(early) == 2 * MOST_HELD
    assert [text for _, text in early] + [line.text for line in collapser.rest()] == texts


def test_ranks_in_few_signs():
    assert told([5]) == "5"
    assert told([3, 0, 1, 2, 6, 8, 9]) == "0-3,6,8-9"
    for size in range(1, 5):
        for ranks in itertools.combinations(range(6), size):
            parts = [part.split("-") for part in told(ranks).split(",")]
            assert [rank for part in parts for rank in range(int(part[0]), int(part[-1]) + 1)] == list(ranks)


def test_pieces_of_a_real_pipe():
    reader, writer = os.pipe()
    os.write(writer, b"hello\nworld")
    os.close(writer)
    assert split(os.read(reader, 100)) == ["hello", "world"]
    os.close(reader)
