"""Agreed: what a job's keys in etcd say of it, for who sees no records: its world, its agents, its wish. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elastic.observe.words import plain
from elastic.rendezvous.control import Asked
from elastic.rendezvous.model import Member, MemberState, Phase, World
from elastic.rendezvous.wish import Wish

_PHASES = {Phase.FORMED: "AT WORK", Phase.OPEN: "BETWEEN GENERATIONS", Phase.CLOSED: "OVER"}
_SEATED = {MemberState.LEAVING: "leaving", MemberState.DONE: "done"}


@dataclass(frozen=True, kw_only=True)
class AgentSeen:
    """One agent: its node, its first rank if it has a seat, what it does."""

    node: str
    rank: int | None
    state: str


@dataclass(frozen=True, kw_only=True)
class JobSeen:
    """A job at one moment, as its agents have agreed on it."""

    job_id: str
    state: str
    reason: str
    generation: int
    world_size: int
    nodes: int
    paused: bool
    limits: tuple[int, int] | None
    """What a person has set, if anybody has."""
    agents: tuple[AgentSeen, ...]
    failed: bool


def job_seen(job_id: str, *, world: World | None, members: Sequence[Member], wish: Wish) -> JobSeen:
    """The job as its keys tell it. Of a large world ranks are not told."""
    state = "NOT STARTED" if world is None else _PHASES[world.phase]
    if wish.paused and world is not None and world.phase is not Phase.CLOSED:
        state = "PAUSED" if world.phase is Phase.OPEN else "PAUSING"
    present = [_agent(member, world=world) for member in members]
    there = {member.agent for member in members}
    gone = [seat for seat in (world.seats if world else ()) if seat.agent not in there]
    present += [AgentSeen(node=seat.node, rank=seat.base_rank, state="has no key: its lease ended") for seat in gone]
    return JobSeen(
        job_id=job_id,
        state=state,
        reason=world.reason if world else "no generation was agreed yet",
        generation=world.generation if world else 0,
        world_size=world.world_size if world else 0,
        nodes=world.nodes if world else 0,
        paused=wish.paused,
        limits=(wish.min_nodes, wish.max_nodes) if wish.max_nodes else None,
        agents=tuple(sorted(present, key=lambda each: (each.rank is None, each.rank or 0, each.node))),
        failed=world is not None and world.phase is Phase.CLOSED and world.exit_code != 0,
    )


def job_rows(job: JobSeen) -> list[tuple[str, ...]]:
    """Rows of (name, text) cells, for `console.columns`."""
    rows: list[tuple[str, ...]] = [
        ("job", plain(job.job_id)),
        ("state", f"{job.state}: {plain(job.reason)}"),
        ("world", f"{job.world_size} workers on {job.nodes} nodes, generation {job.generation}"),
    ]
    if job.limits is not None:
        rows.append(("limits", f"{job.limits[0]} to {job.limits[1]} nodes, as a person has asked"))
    for each in job.agents:
        rank = "" if each.rank is None else f"rank {each.rank}, "
        rows.append((f"node {plain(each.node)}", f"{rank}{each.state}"))
    return rows


def scale_answer(asked: Asked) -> str:
    """What will become of a job that was asked to have another size, as far as its keys tell."""
    least, most, now = asked.now.min_nodes, asked.now.max_nodes, asked.world.nodes
    may = f"the job may have {least} to {most} nodes now"
    if asked.now.paused:
        return f"{may}; it is asked to pause: with so many it goes on after `elastic resume`"
    if asked.world.phase is Phase.OPEN:
        return f"{may}; it is between two generations, and goes on with at most {most} once {least} are here"
    if now < least:
        return f"{may}; it has {now}: at its next step it saves and waits for {least}"
    if now > most:
        return f"{may}; it has {now}: at its next step it goes on with {most}"
    return f"{may}; it has {now}: it goes on as it is"


def pause_answer(asked: Asked) -> str:
    """The same of a job that was asked to pause."""
    if asked.before.paused:
        return f"the job was asked to pause before ({plain(asked.before.paused_by)}); `elastic resume` lets it go on"
    if asked.world.phase is Phase.OPEN:
        return "the job was asked to pause: it is between two generations, and rests at the next one's first step"
    return "the job was asked to pause: it finishes its step, saves, and waits for `elastic resume`"


def resume_answer(asked: Asked) -> str:
    """The same of one that was asked to go on."""
    return "the job was asked to go on" if asked.before.paused else "the job was not asked to pause: nothing changes"


def _agent(member: Member, *, world: World | None) -> AgentSeen:
    seat = world.seat_of(member.agent) if world is not None else None
    if world is None or world.phase is Phase.CLOSED or (seat is None and world.apart is None):
        spare = world is not None and world.phase is Phase.FORMED
        return AgentSeen(node=member.node, rank=None, state="waits as spare" if spare else "waits")
    state = _SEATED.get(member.state, "at work" if member.ended_generation < world.generation else "waits")
    return AgentSeen(node=member.node, rank=seat.base_rank if seat else None, state=state)
