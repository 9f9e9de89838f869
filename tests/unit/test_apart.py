"""Seats kept apart: put together again they are the same, and who follows the moves knows what the parts say."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.errors import StoreError
from elastic.events import Cause
from elastic.rendezvous.apart import Part, all_of, lay_apart, moved, part_from_json, part_of, put_together
from elastic.rendezvous.model import Member, Phase, World, world_from_json, world_to_json
from elastic.rendezvous.seating import arrange


def member(number: int, slots: int = 8) -> Member:
    return Member(
        agent=f"{number * 2654435761 % 2**32:08x}", node=f"node{number}", address="10.0.0.1", slots=slots,
        probe_port=1000 + number, store_port=1, lease=number,
    )  # fmt: skip


def formed(generation: int, members: list[Member], old: World | None = None) -> World:
    return World(
        generation=generation, phase=Phase.FORMED, store_address="10.0.0.1", store_port=1, cause=Cause.START, reason="",
        seats=arrange(old, joiners=members, max_nodes=10_000),
    )  # fmt: skip


def told(world: World) -> World:
    """What everybody reads in the world key."""
    return world_from_json(world_to_json(world))


def own_part(texts: dict[int, str], agent: str) -> Part:
    return part_from_json(texts[part_of(agent, parts=len(texts))], agent=agent)


def is_fresh(world: World, agent: str) -> bool:
    return part_of(agent, parts=world.apart.parts) in world.apart.fresh


def test_a_small_world_stays_in_one_key():
    world, texts = lay_apart(formed(1, [member(n) for n in range(64)]), before=None)
    assert not texts
    assert told(world) == world


@pytest.mark.parametrize("nodes", [65, 1000])
def test_a_large_world_is_put_together_again(nodes):
    world, texts = lay_apart(formed(3, [member(n) for n in range(nodes)]), before=None)
    head = told(world)
    assert (head.seats, head.nodes, head.world_size) == ((), nodes, 8 * nodes)
    assert len(world_to_json(world)) < 1000, "what everybody reads does not grow with the world"
    assert put_together(head, parts=texts) == world
    newer, _ = lay_apart(formed(4, [member(n) for n in range(nodes)]), before=None)
    assert put_together(told(newer), parts=texts) is None
    assert put_together(head, parts=dict(list(texts.items())[1:])) is None


def test_a_world_of_thousands_fits_into_one_transaction():
    _world, texts = lay_apart(formed(1, [member(n) for n in range(10_000)]), before=None)
    assert len(texts) + 2 <= 128
    assert sum(map(len, texts.values())) < 1_500_000


@settings(deadline=None, max_examples=60)
@given(
    lost=st.sets(st.integers(0, 99), max_size=8),
    fresh=st.lists(st.sampled_from([4, 8]), max_size=6),
)
def test_moves_say_what_the_parts_say(lost, fresh):
    members = [member(n) for n in range(100)]
    first, first_texts = lay_apart(formed(1, members), before=None)
    here = [m for n, m in enumerate(members) if n not in lost]
    here += [member(200 + n, slots) for n, slots in enumerate(fresh)]
    second, texts = lay_apart(formed(2, here, first), before=first)
    for each in members:
        part = moved(own_part(first_texts, each.agent), to=told(second).apart)
        if part is None:
            assert len(fresh) > len(lost) or second.apart.since == 0 or is_fresh(second, each.agent)
            continue
        assert part.seats == own_part(texts, each.agent).seats
        assert all_of(part) == (all_of(own_part(texts, each.agent)) if part.seats else all_of(part))


def test_after_one_loss_nobody_who_had_a_seat_reads_it_again():
    members = [member(n) for n in range(1000)]
    first, first_texts = lay_apart(formed(1, members), before=None)
    second, _texts = lay_apart(formed(2, members[:500] + members[501:], first), before=first)
    assert second.apart.since == 1
    seats = {seat.agent: seat for seat in second.seats}
    for each in members:
        part = moved(own_part(first_texts, each.agent), to=told(second).apart)
        assert [seats[each.agent]] == list(part.seats) if each.agent in seats else part.seats == ()


def test_who_had_no_seat_has_to_read():
    members = [member(n) for n in range(100)]
    first, texts = lay_apart(formed(1, members), before=None)
    second, _ = lay_apart(formed(2, [*members[1:], member(200)], first), before=first)
    assert second.apart.since == 1
    assert moved(own_part(texts, member(200).agent), to=second.apart) is None


def test_who_missed_a_generation_has_to_read():
    members = [member(n) for n in range(100)]
    first, texts = lay_apart(formed(1, members), before=None)
    second, _ = lay_apart(formed(2, members[1:], first), before=first)
    third, _ = lay_apart(formed(3, members[2:], second), before=second)
    assert moved(own_part(texts, members[50].agent), to=third.apart) is None


def test_those_of_a_part_know_each_other_and_hear_of_who_is_new():
    members = [member(n) for n in range(200)]
    first, first_texts = lay_apart(formed(1, members), before=None)
    here = [*members[:7], *members[8:], member(500)]
    second, texts = lay_apart(formed(2, here, first), before=first)
    assert second.apart.fresh == (part_of(member(500).agent, parts=second.apart.parts),)
    read = 0
    for each in here[:-1]:
        part = moved(own_part(first_texts, each.agent), to=told(second).apart)
        if part is None:
            read += 1
            part = own_part(texts, each.agent)
        assert all_of(part) == all_of(own_part(texts, each.agent))
    assert 0 < read < 80, "one part of five"
    third, _ = lay_apart(formed(3, here[1:], second), before=second)
    part = moved(
        moved(own_part(first_texts, members[9].agent), to=second.apart) or own_part(texts, members[9].agent),
        to=third.apart,
    )
    assert [seat.agent for seat in all_of(part)] == [
        seat.agent for seat in third.seats
        if part_of(seat.agent, parts=third.apart.parts) == part_of(members[9].agent, parts=third.apart.parts)
    ]  # fmt: skip


def test_the_parts_stay_the_same_while_the_world_grows_a_little():
    members = [member(n) for n in range(300)]
    first, _ = lay_apart(formed(1, members[:150]), before=None)
    second, _ = lay_apart(formed(2, members[:170], first), before=first)
    third, _ = lay_apart(formed(3, members, second), before=second)
    assert (first.apart.parts, second.apart.parts, third.apart.parts) == (4, 4, 4)
    fourth, _ = lay_apart(formed(4, [*members, *(member(n) for n in range(600, 700))], third), before=third)
    assert fourth.apart.parts == 10


@pytest.mark.parametrize("text", ["", "{}", '{"generation":1,"seats":[[1]]}'])
def test_what_is_not_a_part_is_named(text):
    with pytest.raises(StoreError, match="part of the world's seats"):
        part_from_json(text)
