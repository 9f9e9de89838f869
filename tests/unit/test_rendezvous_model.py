"""What the keys hold survives JSON, and node names sort as people count."""

import dataclasses
import random

import pytest

from elastic.errors import StoreError
from elastic.events import Cause, Outcome
from elastic.rendezvous.model import (
    Barred,
    Bucket,
    Cut,
    Failure,
    FailureReport,
    LeftOut,
    Member,
    MemberState,
    Phase,
    Seat,
    World,
    member_from_json,
    member_to_json,
    natural_key,
    world_from_json,
    world_to_json,
)

REPORT = FailureReport(cause=Cause.WORKER_EXIT, rank=3, step=7, signature="ValueError", text="line\nline", exit_code=1)
MEMBER = Member(
    agent="ab12",
    node="node1",
    address="::1",
    slots=2,
    probe_port=4,
    store_port=5,
    lease=77,
    state=MemberState.DONE,
    ended_generation=4,
    report=REPORT,
    unreachable=("cd34",),
    unreachable_in=3,
)
WORLD = World(
    generation=4,
    phase=Phase.CLOSED,
    seats=(Seat(agent="ab12", node="node1", address="::1", probe_port=9, slots=2, group_rank=0, base_rank=0),),
    store_address="::1",
    store_port=5,
    cause=Cause.NODE_LOST,
    reason="because",
    leaving=("x",),
    left_out=(LeftOut(agent="y", generation=3),),
    failures=(Failure(generation=1, agent="y", step=2, signature="s", committed_steps=0, bucket=Bucket.PEER),),
    cut=(Cut(agent="z", node="node9", tries=2),),
    barred=(Barred(agent="w", node="node8", signature="s", exit_code=70, reason="r", text="t"),),
    outcome=Outcome.FAILED,
    exit_code=77,
    text="traceback",
)


def test_member_survives_json():
    assert member_from_json(member_to_json(MEMBER)) == MEMBER
    assert member_from_json(member_to_json(dataclasses.replace(MEMBER, report=None))).report is None


def test_world_survives_json():
    assert world_from_json(world_to_json(WORLD)) == WORLD
    assert '"world_size":2' in world_to_json(WORLD)


def test_fields_of_a_later_version_are_ignored():
    assert member_from_json(member_to_json(MEMBER)[:-1] + ',"later":1}') == MEMBER


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"phase":"odd"}', "null"])
def test_what_is_not_ours_is_refused_with_its_text(text):
    with pytest.raises(StoreError, match="not a world of this version"):
        world_from_json(text)
    with pytest.raises(StoreError, match="another program may use the same prefix"):
        member_from_json(text)


def test_natural_order():
    names = ["node1", "node2", "node10", "node10a", "rack2-node1", "rack10-node1", ""]
    shuffled = random.Random(1).sample(names, len(names))
    assert sorted(shuffled, key=natural_key) == [
        "",
        "node1",
        "node2",
        "node10",
        "node10a",
        "rack2-node1",
        "rack10-node1",
    ]
