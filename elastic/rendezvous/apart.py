"""Apart: the seats of a large world, kept in parts beside the world key, so that no agent reads all of them.

The world key is read by everybody, so with thousands of seats in it a change would cost N squared. From `_INLINE` seats
on it holds only how many there are; an agent finds its own seat in the part that its id falls into. When few seats
changed, the world key also says how ranks moved, and those who had a seat read nothing more, unless somebody new has
come into their part: those of a part know each other, and ask each other when the world stands still. World and parts
are written in one transaction. Pure.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elastic.errors import StoreError
from elastic.rendezvous.model import Apart, Seat, World, digest_of

_INLINE = 64
_SEATS_OF_A_PART = 40
# etcd takes at most 128 operations in a transaction.
_MOST_PARTS = 120
_MOST_MOVES = 16
# What an agent keeps of generations since it read its part; then it reads it again.
_MOST_KEPT = 32
# Ranks only ever move down: up by one means that the seat is gone.
_GONE = 1
_FIELDS = tuple(field.name for field in dataclasses.fields(Seat))


@dataclass(frozen=True, kw_only=True)
class Part:
    """The seats of a generation whose agents' ids fall into one part, in rank order; or one agent's own, if any.

    `text` holds all of the part, as it was read; `moves` how ranks moved since, generation by generation.
    """

    generation: int
    seats: tuple[Seat, ...]
    text: str = ""
    moves: tuple[tuple[tuple[int, int, int], ...], ...] = ()


def lay_apart(world: World, *, before: World | None) -> tuple[World, dict[int, str]]:
    """A newly formed world as it is to be written, and the texts of its parts by number; none for a small world.

    `before`: the last world, with all of its seats.
    """
    if len(world.seats) <= _INLINE:
        return dataclasses.replace(world, apart=None, digest=""), {}
    parts = _count(len(world.seats), before=before.apart if before is not None else None)
    apart = Apart(
        generation=world.generation,
        parts=parts,
        nodes=len(world.seats),
        workers=sum(seat.slots for seat in world.seats),
    )
    if before is not None and before.apart is not None and (moves := _moves(before.seats, world.seats)) is not None:
        known = {seat.agent for seat in before.seats}
        fresh = {part_of(seat.agent, parts=parts) for seat in world.seats if seat.agent not in known}
        apart = dataclasses.replace(apart, since=before.apart.generation, moves=moves, fresh=tuple(sorted(fresh)))
    world = dataclasses.replace(world, apart=apart, digest=digest_of(world.seats))
    return world, parts_of(world)


def parts_of(world: World) -> dict[int, str]:
    """The texts of a world's parts by number. The world has all of its seats."""
    assert world.apart is not None
    rows: list[list[object]] = [[] for _ in range(world.apart.parts)]
    for seat in world.seats:
        rows[part_of(seat.agent, parts=world.apart.parts)].append(list(vars(seat).values()))
    return {
        number: json.dumps({"generation": world.apart.generation, "seats": part}, separators=(",", ":"))
        for number, part in enumerate(rows)
    }


def part_of(agent: str, *, parts: int) -> int:
    """The number of the part that an agent's seat is in."""
    return zlib.crc32(agent.encode()) % parts


def part_from_json(text: str, *, agent: str | None = None) -> Part:
    """Read one part, or only one agent's seat of it: the others are read by `all_of`. Raises StoreError."""
    try:
        raw = json.loads(text)
        seats = tuple(_seat(row) for row in raw["seats"] if agent in (None, row[0]))
        return Part(generation=int(raw["generation"]), seats=seats, text=text if agent is not None else "")
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"a part of the world's seats holds {text[:120]!r}, which this version cannot read") from error


def put_together(world: World, *, parts: Mapping[int, str]) -> World | None:
    """The world with all of its seats; None where the parts are not those of this world."""
    assert world.apart is not None
    read = [part_from_json(parts[number]) for number in range(world.apart.parts) if number in parts]
    if len(read) < world.apart.parts or any(part.generation != world.apart.generation for part in read):
        return None
    seats = sorted((seat for part in read for seat in part.seats), key=lambda seat: seat.group_rank)
    return dataclasses.replace(world, seats=tuple(seats))


def moved(part: Part, *, to: Apart) -> Part | None:
    """An agent's own seat as it is in this generation; None where that cannot be told without reading."""
    if to.generation == part.generation:
        return part
    if to.since != part.generation or not part.seats:
        return None  # The moves speak of those who had a seat.
    if part_of(part.seats[0].agent, parts=to.parts) in to.fresh or len(part.moves) >= _MOST_KEPT:
        return None
    return Part(
        generation=to.generation,
        seats=_all_moved(part.seats, to.moves),
        text=part.text,
        moves=(*part.moves, to.moves) if to.moves else part.moves,
    )


def all_of(part: Part) -> tuple[Seat, ...]:
    """All seats of an agent's part as they are now, in rank order; those that came since it was read are not known."""
    seats = part_from_json(part.text).seats if part.text else part.seats
    for moves in part.moves:
        seats = _all_moved(seats, moves)
    return seats


def _count(seats: int, *, before: Apart | None) -> int:
    """How many parts: as many as before where that still does, so that those of a part go on knowing each other."""
    if before is not None and _SEATS_OF_A_PART / 2 <= seats / before.parts <= 2 * _SEATS_OF_A_PART:
        return before.parts
    return min(_MOST_PARTS, -(-seats // _SEATS_OF_A_PART))


def _all_moved(seats: Sequence[Seat], moves: Sequence[tuple[int, int, int]]) -> tuple[Seat, ...]:
    return tuple(after for seat in seats if (after := _moved(seat, moves)) is not None)


def _moved(seat: Seat, moves: Sequence[tuple[int, int, int]]) -> Seat | None:
    """`moves` are (first old rank, by how many ranks, by how many workers' ranks), in order."""
    ranks = workers = 0
    for first, by_ranks, by_workers in moves:
        if first > seat.group_rank:
            break
        ranks, workers = by_ranks, by_workers
    if ranks == _GONE:
        return None
    if not (ranks or workers):
        return seat
    return dataclasses.replace(seat, group_rank=seat.group_rank + ranks, base_rank=seat.base_rank + workers)


def _moves(old: Sequence[Seat], new: Sequence[Seat]) -> tuple[tuple[int, int, int], ...] | None:
    """How the ranks of the old seats moved; None where there is too much to tell, or more than ranks changed."""
    now = {seat.agent: seat for seat in new}
    moves: list[tuple[int, int, int]] = []
    for seat in old:
        after = now.get(seat.agent)
        if after is None:
            step = (_GONE, 0)
        else:
            step = (after.group_rank - seat.group_rank, after.base_rank - seat.base_rank)
            if step[0] > 0 or not _same(seat, after):
                return None
        if step != (moves[-1][1:] if moves else (0, 0)):
            moves.append((seat.group_rank, *step))
            if len(moves) > _MOST_MOVES:
                return None
    return tuple(moves)


def _same(old: Seat, new: Seat) -> bool:
    return (old.address, old.probe_port, old.slots) == (new.address, new.probe_port, new.slots)


def _seat(row: Sequence[object]) -> Seat:
    return Seat(**dict(zip(_FIELDS, row, strict=True)))  # type: ignore[arg-type]  # in the order of the fields
