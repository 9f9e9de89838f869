"""Model: what the keys of a job hold. Members, seats and the world as frozen values, and their JSON.

Pure: no I/O, no torch. A reader ignores fields that it does not know, so that versions may differ by one.
"""

from __future__ import annotations

import enum
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from elastic.errors import Lack
from elastic.events import Cause, Outcome
from elastic.rendezvous.reading import Reading

_Made = TypeVar("_Made")


class MemberState(enum.StrEnum):
    """What an agent asks for. IDLE: nothing yet."""

    IDLE = "idle"
    JOINING = "joining"
    LEAVING = "leaving"
    DONE = "done"


class Phase(enum.StrEnum):
    """Where the world stands: agreed, being formed anew, or over."""

    FORMED = "formed"
    OPEN = "open"
    CLOSED = "closed"


class Bucket(enum.StrEnum):
    """What a failure spends from: each reason has its own budget."""

    EXCEPTION = "exception"
    EXIT = "exit"
    SIGNAL = "signal"
    HANG = "hang"
    GROUP = "group"
    PEER = "peer"
    STATE = "state"
    """What was committed is not there."""


class ProbeResult(enum.StrEnum):
    """What became of asking an agent for its name."""

    ALIVE = "alive"
    REFUSED = "refused"
    SILENT = "silent"


@dataclass(frozen=True, kw_only=True)
class FailureReport:
    """Why an agent's workers ended, as the agent saw it.

    `generation` is the one that it ended, however late it is heard (0: the one it is heard in). `step` is the step
    reached, `committed_steps` how many the run committed since this agent started (0: none at all), `signature` names
    the failure so that two can be compared, `text` is for people (a traceback). `node_local`: the node is to blame (a
    full disk, a path that is not there), others may do without it. `lacks`: what may be on nodes that are not here.
    """

    cause: Cause
    rank: int
    step: int
    signature: str
    text: str = ""
    exit_code: int | None = None
    committed_steps: int = 0
    node_local: bool = False
    lacks: Lack = Lack.NOTHING
    generation: int = 0

    @property
    def is_own(self) -> bool:
        """Whether the workers themselves failed: neither other agents nor the way to them are to blame."""
        return self.cause not in (Cause.PEER_LOST, Cause.GROUP_FAILED)


@dataclass(frozen=True, kw_only=True)
class Member:
    """One agent's key: who it is, where it is reached, what it asks for.

    `ended_generation` is the last generation that this agent is finished with (0: none). A JOINING member of the
    present generation g with `ended_generation` < g has simply not written since: its workers are at work.
    `seen_closed` is the generation that was over when this agent started: it begins the job anew.
    `unreachable` names the agents of generation `unreachable_in` that this one cannot reach, found while that
    generation did not advance or its workers' group did not form. It stays until the agent says otherwise.
    """

    agent: str
    node: str
    address: str
    slots: int
    probe_port: int
    store_port: int
    lease: int
    state: MemberState = MemberState.JOINING
    ended_generation: int = 0
    last_generation: int = 0
    root_generation: int = 0
    seen_closed: int = 0
    report: FailureReport | None = None
    unreachable: tuple[str, ...] = ()
    unreachable_in: int = 0
    exporter: str = ""
    fingerprint: str = ""
    numerics: str = ""
    """How its workers compute, where that must be alike (see alike.py)."""
    speaks: str = ""  # see versions.py
    launch: str = ""  # see launched.py


@dataclass(frozen=True, kw_only=True)
class Seat:
    """A member's place in the world: its node rank and the first of its workers' ranks."""

    agent: str
    node: str
    address: str
    probe_port: int
    slots: int
    group_rank: int
    base_rank: int


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A failure that counts against the budget, and the generation that it ended. No agent: nobody's own."""

    generation: int
    agent: str
    step: int
    signature: str
    committed_steps: int
    bucket: Bucket = Bucket.EXIT


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A member of a generation that came too late for the next; it asks again once it has ended that one."""

    agent: str
    generation: int


@dataclass(frozen=True, kw_only=True)
class Cut:
    """An agent that was left out since it and others do not reach each other; `tries`: so often in a row."""

    agent: str
    node: str
    tries: int


@dataclass(frozen=True, kw_only=True)
class Barred:
    """An agent whose workers alone kept failing at this step: it ends with this code, the job goes on without it."""

    agent: str
    node: str
    signature: str
    exit_code: int
    reason: str
    text: str = ""
    step: int = 0


@dataclass(frozen=True, kw_only=True)
class Apart:
    """Where the seats of a large world are: in `parts` keys, written when `generation` was formed (see apart.py).

    `moves` tells how ranks moved for those who had a seat in generation `since`; 0: it is not told. `fresh` are the
    parts that somebody new has come into since then.
    """

    generation: int
    parts: int
    nodes: int
    workers: int
    since: int = 0
    moves: tuple[tuple[int, int, int], ...] = ()
    fresh: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class World:
    """The agreed membership. Seats are in rank order; the store listens on the agent of seat 0.

    With `apart`, an agent that does not lead finds its own seat only here: count with `nodes` and `world_size`.

    A `direct` world was formed while its members were at work in the last one: who has a seat was not heard before.
    An OPEN world is the generation that is being left; `planned` means that workers finish their step first,
    and `leaving` names the agents that go.
    """

    generation: int
    phase: Phase
    seats: tuple[Seat, ...]
    store_address: str
    store_port: int
    cause: Cause
    reason: str
    planned: bool = False
    direct: bool = False
    leaving: tuple[str, ...] = ()
    room: int = 0
    """Where a person wants another size: node ranks from here on save and end their workers."""
    most_nodes: int = 0  # as torchrun or a person wanted it when this was formed
    left_out: tuple[LeftOut, ...] = ()
    cut: tuple[Cut, ...] = ()
    barred: tuple[Barred, ...] = ()
    failures: tuple[Failure, ...] = ()
    outcome: Outcome | None = None
    exit_code: int = 0
    text: str = ""
    digest: str = ""
    """Of all its seats, taken when it was formed: a reader may know only its own. "": of the seats that are here."""
    apart: Apart | None = None
    numerics: str = ""
    """What its members had in common when it was formed; "": nothing that matters."""
    speaks: str = ""
    launch: str = ""
    goes_back: bool = False
    """Its members do not hold what was committed last, and others were waited for in vain: they go back."""
    secret: str = field(default="", repr=False)
    """By which its workers know each other (distributed/proving.py): drawn by the leader as this was formed."""

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.apart.nodes if self.apart else len(self.seats)

    @property
    def world_size(self) -> int:
        """Number of workers."""
        return self.apart.workers if self.apart else sum(seat.slots for seat in self.seats)

    @property
    def token(self) -> str:
        """What fences: the generation's number, and a digest of its members. A store that lost its data may let a
        number be given twice, but not to other members unnoticed."""
        return f"{self.generation}.{self.digest or digest_of(self.seats)}"

    def seat_of(self, agent: str) -> Seat | None:
        """The agent's seat, or None where it has none."""
        return next((seat for seat in self.seats if seat.agent == agent), None)


def digest_of(seats: Sequence[Seat]) -> str:
    """A short digest of who is in a world, in its order."""
    return f"{zlib.crc32(chr(10).join(seat.agent for seat in seats).encode()):08x}"


def natural_key(text: str) -> tuple[Any, ...]:
    """Sort key that puts node2 before node10."""
    return tuple(int(part) if index % 2 else part for index, part in enumerate(re.split(r"([0-9]+)", text)))


def seating_key(member: Member) -> tuple[Any, ...]:
    """The order of newcomers: by node name, naturally; the agent's id breaks ties."""
    return (natural_key(member.node), member.agent)


def member_to_json(member: Member) -> str:
    """The text of a member key."""
    return _dump(vars(member))


def world_to_json(world: World) -> str:
    """The text of the world key; `world_size` is there for people and status tools. Seats kept apart are left out."""
    seats = () if world.apart else world.seats
    return _dump(vars(world) | {"seats": seats, "world_size": world.world_size})


def member_from_json(text: str) -> Member:
    """Read a member key.

    Raises:
        StoreError: the text is not a member.
    """
    with Reading("member", text):
        raw = json.loads(text)
        report = raw.pop("report", None)
        return _make(
            Member,
            raw,
            state=MemberState(raw["state"]),
            report=_report(report) if report else None,
            unreachable=tuple(raw.get("unreachable", ())),
        )


def world_from_json(text: str) -> World:
    """Read the world key.

    Raises:
        StoreError: the text is not a world.
    """
    with Reading("world", text):
        raw = json.loads(text)
        return _make(
            World,
            raw,
            phase=Phase(raw["phase"]),
            cause=Cause(raw["cause"]),
            outcome=Outcome(raw["outcome"]) if raw.get("outcome") else None,
            seats=tuple(_make(Seat, item) for item in raw["seats"]),
            failures=tuple(_failure(item) for item in raw.get("failures", ())),
            cut=tuple(_make(Cut, item) for item in raw.get("cut", ())),
            barred=tuple(_make(Barred, item) for item in raw.get("barred", ())),
            left_out=tuple(_make(LeftOut, item) for item in raw.get("left_out", ())),
            leaving=tuple(raw.get("leaving", ())),
            apart=_apart(raw["apart"]) if raw.get("apart") else None,
        )


def _report(raw: Mapping[str, Any]) -> FailureReport:
    return _make(FailureReport, raw, cause=Cause(raw["cause"]), lacks=Lack(raw.get("lacks", Lack.NOTHING)))


def _failure(raw: Mapping[str, Any]) -> Failure:
    return _make(Failure, raw, bucket=Bucket(raw.get("bucket", Bucket.EXIT)))


def _apart(raw: Mapping[str, Any]) -> Apart:
    moves = tuple((int(a), int(b), int(c)) for a, b, c in raw.get("moves", ()))
    return _make(Apart, raw, moves=moves, fresh=tuple(raw.get("fresh", ())))


def _make(cls: type[_Made], raw: Mapping[str, Any], **converted: Any) -> _Made:
    names: Mapping[str, Any] = cls.__dataclass_fields__  # type: ignore[attr-defined]  # mypy cannot say: any dataclass
    return cls(**({name: value for name, value in raw.items() if name in names} | converted))


def _dump(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), default=vars)
