"""Records of other versions: told for what they are, written back as they came, never lost in silence."""

import json
from dataclasses import replace

import pytest

from elastic.data.lineage import trace
from elastic.events import Cause, Recovered, Restored, Unknown, decode, encode, merged_records, read_records
from tests.harness import story

RECOVERED = story.record(
    Recovered(cause=Cause.PEER_LOST, path="rejoin", seconds=0.5, lost_steps=1), at_s=7.0, generation=3
)
GONE = "gone"


def line(**changes):
    raw = json.loads(encode(RECOVERED)) | changes
    return json.dumps({name: value for name, value in raw.items() if value != GONE}, separators=(",", ":"))


@pytest.mark.parametrize(
    ("changes", "name", "reason"),
    [
        ({"kind": "teleported"}, "teleported", "no such kind"),
        ({"path": GONE}, "recovered", "it does not tell path"),
        ({"cause": "moonlight"}, "recovered", "moonlight"),
    ],
)
def test_what_another_version_wrote_is_a_record_of_its_own_kind(changes, name, reason):
    text = line(**changes)
    found = decode(text)
    assert (found.node, found.generation, found.time_s) == ("a", 3, 7.0)
    assert isinstance(found.event, Unknown)
    assert found.event.name == name
    assert reason in found.event.reason
    assert json.loads(encode(found)) == json.loads(text)


def test_a_field_that_only_another_version_knows_is_left_out():
    assert decode(line(weather="fine")) == RECOVERED


def test_a_restore_of_a_version_that_did_not_count_is_one_of_which_nothing_is_known():
    event = Restored(
        tier="peer", iteration=1, consumed_samples=8, seconds=0.1, reason="", arrived=(("peer", 7, 0.5),), givers=(2,)
    )
    record = story.record(event, at_s=7.0, rank=1)
    assert decode(encode(record)) == record
    raw = json.loads(encode(record))
    del raw["arrived"], raw["givers"]
    assert decode(json.dumps(raw)).event == replace(event, arrived=(), givers=())
    raw["arrived"] = [["peer", "7", 0.5]]
    assert isinstance(decode(json.dumps(raw)).event, Unknown)


def test_what_is_no_record_is_an_error_still():
    for text in ("[]", "{}", '{"kind":"recovered"}', "null", '"x"', "7"):
        with pytest.raises(ValueError, match="not an event record"):
            decode(text)


def test_readers_pass_them_on(tmp_path):
    (tmp_path / "a.jsonl").write_text(line(kind="teleported") + "\n" + encode(RECOVERED) + "\n")
    unreadable = []
    assert [each.event.kind for each in merged_records(tmp_path, on_unreadable=unreadable.append)] == [
        "unknown",
        "recovered",
    ]
    assert len(read_records(tmp_path)) == 2
    assert not unreadable


def test_an_account_says_that_it_could_not_count_one():
    (step,) = story.step(1, "a", at_s=1.0)
    raw = json.loads(encode(step))
    del raw["loss"]
    found = trace([*story.begun("a", at_s=0.0), decode(json.dumps(raw))])
    assert found.problems == ("generation 1: a step_committed of another version: it does not tell loss",)
    assert not trace([*story.begun("a", at_s=0.0), step]).problems
