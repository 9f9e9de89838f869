"""Seating: who gets which rank in the next generation. Survivors keep their order, newcomers fill holes.

Pure. Ranks are sticky so that rank 0, its store and its shards stay where they are when another node dies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from elastic.rendezvous.model import Member, Seat, World, seating_key


def arrange(old: World | None, *, joiners: Collection[Member], max_nodes: int) -> tuple[Seat, ...]:
    """Seats of the next world, at most `max_nodes`: survivors first, then newcomers by node name.

    A newcomer takes the place of a member that is gone, else the end; places still empty are closed.
    """
    by_agent = {member.agent: member for member in joiners}
    places = [by_agent.pop(seat.agent, None) for seat in (old.seats if old else ())]
    room = max_nodes - sum(member is not None for member in places)
    newcomers = sorted(by_agent.values(), key=seating_key)[: max(0, room)]
    for index, place in enumerate(places):
        if place is None and newcomers:
            places[index] = newcomers.pop(0)
    seated = [member for member in (*places, *newcomers) if member is not None]
    return _number(seated[:max_nodes])


def next_generation(world: World | None, *, members: Iterable[Member]) -> int:
    """One more than anything that the store, a member or a checkpoint root has seen: grows even over a wiped store."""
    seen = [max(m.ended_generation, m.last_generation, m.root_generation, m.seen_closed) for m in members]
    return 1 + max([world.generation if world else 0, *seen])


def _number(members: Iterable[Member]) -> tuple[Seat, ...]:
    seats: list[Seat] = []
    base_rank = 0
    for group_rank, member in enumerate(members):
        seats.append(
            Seat(
                agent=member.agent,
                node=member.node,
                address=member.address,
                probe_port=member.probe_port,
                slots=member.slots,
                group_rank=group_rank,
                base_rank=base_rank,
            )
        )
        base_rank += member.slots
    return tuple(seats)
