"""Event files that hold anything at all: every reader passes over what is no record, counts it, and shows the rest."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic import events
from elastic.cli import main
from elastic.data.audit import account
from elastic.events import EVENT_TYPES, Unknown, decode, encode
from elastic.observe.chronicle import chronicle
from elastic.observe.page import Account, page
from elastic.observe.screen import screen
from elastic.observe.watching import Watching
from elastic.plan.order import ORDER_VERSION
from tests.harness import story
from tests.harness.histories import Life, small_order, small_plan, write_history

GOOD = encode(story.step(1, "a", at_s=104.0)[0])
DEEP = "[" * 100_000
NO_RECORDS = {
    "no JSON": "{torn",
    "a time beyond all": GOOD.replace('"time_s":104.0', '"time_s":1e300'),
    "a time before all": GOOD.replace('"time_s":104.0', '"time_s":-1'),
    "a time that is no number": GOOD.replace('"time_s":104.0', '"time_s":NaN'),
    "a time in words": GOOD.replace('"time_s":104.0', '"time_s":"noon"'),
    "a node that is no name": GOOD.replace('"node":"a"', '"node":["a"]'),
    "a rank that is none": GOOD.replace('"rank":0', '"rank":"0"'),
    "a generation below zero": GOOD.replace('"generation":1', '"generation":-1'),
    "a kind that is no word": GOOD.replace('"step_committed"', "7"),
    "nested without an end": DEEP,
    "nested in a field": GOOD.replace('"loss":2.0', f'"loss":{DEEP}{"]" * len(DEEP)}'),
    "a number of ten thousand digits": GOOD.replace('"loss":2.0', f'"loss":{"9" * 10_000}'),
}


def test_each_line_is_another_one_than_the_good_one():
    assert GOOD not in NO_RECORDS.values()
    assert isinstance(decode(GOOD).event, events.StepCommitted)


@pytest.mark.parametrize("line", NO_RECORDS.values(), ids=NO_RECORDS)
def test_what_is_no_record_says_so(line):
    with pytest.raises(ValueError, match="not an event record"):
        decode(line)


def test_a_field_of_another_shape_makes_it_a_record_of_another_version():
    for value in ("x", None, [1], {}, True, 1 << 70):
        raw = json.loads(GOOD) | {"iteration": value}
        found = decode(json.dumps(raw)).event
        assert isinstance(found, Unknown)
        assert found.reason.startswith("its iteration is ")
    assert isinstance(decode(GOOD.replace('"seconds":0.9', '"seconds":NaN')).event, Unknown)
    assert math.isnan(decode(GOOD.replace('"loss":2.0', '"loss":NaN')).event.loss), "a loss may be no number"
    assert decode(GOOD.replace('"loss":2.0', '"loss":3')).event.loss == 3.0


ANYTHING = st.one_of(
    st.sampled_from([None, True, -1, 0, 1e300, -1e300, math.nan, math.inf, 1 << 63, "\ud800\x1b[31m", [], {}, [[]]]),
    st.integers(),
    st.floats(),
    st.text(),
    st.recursive(st.none(), lambda inner: st.lists(inner, max_size=3), max_leaves=5),
)


@st.composite
def strange_lines(draw):
    """A few lines of a run's, of which some fields hold anything."""
    lines = [encode(each) for each in story.finished()]
    found = []
    for line in draw(st.lists(st.sampled_from(lines), min_size=1, max_size=5)):
        raw = json.loads(line)
        for name in draw(st.lists(st.sampled_from(sorted(raw)), max_size=2)):
            raw[name] = draw(ANYTHING)
        found.append(json.dumps(raw))
    return found


@settings(max_examples=60, deadline=None)
@given(strange=strange_lines(), kind=st.sampled_from(sorted(EVENT_TYPES)), value=ANYTHING)
def test_whatever_the_fields_hold_no_view_of_the_run_breaks(strange, kind, value):
    every_field = dict.fromkeys(EVENT_TYPES[kind].__annotations__, value)
    strange = [
        *strange,
        json.dumps({"time_s": 110, "node": "a", "rank": 0, "generation": 1, "kind": kind, **every_field}),
    ]
    records = story.finished()
    for line in strange:
        try:
            records.append(decode(line))
        except ValueError:
            continue
    records.sort(key=lambda each: each.time_s)
    watching = Watching()
    for each in records:
        watching.apply(each)
        assert decode(encode(each)).event.kind == each.event.kind
    seen = watching.watched(now_s=200.0, goal_samples=480)
    told = [" ".join(row) for row in screen(seen.status)] + list(seen.events)
    "\n".join(told).encode()
    assert all(line.isprintable() for line in told)
    page(chronicle(records), account=Account(verdict="", exact=None), settings={}, made_s=0.0).encode()
    account(records, order=None)


@pytest.fixture
def run(capsys, tmp_path):
    """A command on a run with lines that are no records and nodes whose files cannot be read."""
    place = tmp_path / "run"
    story.write(place, story.finished())
    spoil(place / "events", NO_RECORDS.values())

    def call(command, *options, place=place):
        code = main([command, str(place), *options])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return call


def spoil(directory, lines):
    """Add lines to a node's file, and two nodes whose files cannot be read."""
    with (directory / "a.jsonl").open("a") as file:
        file.writelines(f"{line}\n" for line in lines)
    (directory / "y.jsonl").symlink_to("/proc/self/mem")  # it can be opened, but not read
    (directory / "z.jsonl").mkdir()


PASSED_OVER = f"{len(NO_RECORDS) + 2} lines or files of the events cannot be read, passed over; the first: "


@pytest.mark.parametrize("argv", [("events",), ("events", "--all", "--json")], ids=" ".join)
def test_the_events_command_shows_the_rest_and_says_what_it_passed_over(run, argv):
    code, out, err = run(*argv)
    assert (code, "done on a, b" in out, PASSED_OVER in err) == (0, True, True)


@pytest.mark.parametrize("argv", [("status",), ("status", "--json"), ("status", "--watch"), ("top",)], ids=" ".join)
def test_the_status_does_too(run, argv):
    """It leaves out most lines of steps unread."""
    code, out, err = run(*argv)
    assert (code, "done on a, b" in out) == (0, True)
    assert int(err.removeprefix("elastic: ").partition(" ")[0]) >= 8


def test_a_report_is_made_of_the_rest(run, tmp_path):
    code, _, err = run("report", "-o", str(tmp_path / "r.html"))
    assert (code, PASSED_OVER in err) == (0, True)
    assert "done on a, b" in (tmp_path / "r.html").read_text()


def test_an_account_is_made_of_the_rest(run, tmp_path):
    """A sound history with garbage in it; where the garbage was a step, the step is missing."""
    order = small_order()
    lives = (Life(generation=1, world_size=2, restored=0, steps=4),)
    chosen = events.OrderChosen(length=37, seed=3, order=order.kind, order_version=ORDER_VERSION)
    told = [story.record(chosen, at_s=0.0, node="a"), *write_history(lives, plan=small_plan(), order=order)]
    story.write(tmp_path / "sound", told)
    spoil(tmp_path / "sound" / "events", NO_RECORDS.values())
    code, out, err = run("audit", place=tmp_path / "sound")
    assert (code, PASSED_OVER in err) == (0, True)
    assert "every sample was used once" in out
    torn = tmp_path / "sound" / "events" / "node-1.jsonl"
    torn.write_text(torn.read_text().replace('"iteration":3', '"iteration":"3"'))
    code, out, _ = run("audit", place=tmp_path / "sound")
    assert (code, "a step_committed of another version: its iteration is '3'" in out) == (1, True)


def test_an_account_and_a_report_pass_over_an_iteration_that_others_wrote(run, tmp_path):
    shard = tmp_path / "run" / "iteration_00000009" / "model-0000000-0000001.safetensors"
    shard.parent.mkdir()
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    shard.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    code, out, err = run("audit")
    assert (code, out, "holds no whole iteration of a run of ours" in err) == (64, "", True)
    assert run("report", "-o", str(tmp_path / "r.html"))[0] == 0
    assert "holds no whole iteration of a run of ours" in (tmp_path / "r.html").read_text()


def test_logs_show_the_rest(run, tmp_path):
    line = {"time_s": 5.0, "node": "a", "ranks": [0], "generation": 1, "stream": "stdout", "text": "a word"}
    logs = tmp_path / "run" / "logs"
    logs.mkdir()
    strange = [json.dumps(line | {"time_s": value}) for value in (1e300, -1, math.nan)] + [DEEP, '{"time_s":' + DEEP]
    (logs / "a.jsonl").write_text("\n".join([*strange, json.dumps(line), ""]))
    (logs / "b.jsonl").symlink_to("/proc/self/mem")
    code, out, err = run("logs")
    assert (code, "00:00:05 [a r0] a word" in out, out.count("a word")) == (0, True, 4)
    assert "b.jsonl cannot be read, passed over: Input/output error" in err
