"""Mutants: the protocol with one compare, fence or re-read taken out, and where a search finds what that breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from elastic.rendezvous import round_open, seating, view
from elastic.rendezvous.fences import commit_fence, restore_fence, world_fence, world_write
from elastic.rendezvous.model import MemberState
from elastic.rendezvous.wish import NO_WISH, paused
from tests.harness.search import at_work, beginning, forgotten, given, losing
from tests.harness.search_state import State
from tests.harness.search_writes import Rules


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """`breaks` is what the search must find, from `start` on."""

    name: str
    breaks: str
    rules: Rules = field(default_factory=Rules)
    start: Callable[[Rules], State] = at_work
    patches: tuple[tuple[Any, str, Any], ...] = ()
    long: bool = False


def _without(build: Callable[..., list], place: int) -> Callable[..., list]:
    def rest(*args: Any, **kwargs: Any) -> list:
        made = build(*args, **kwargs)
        del made[place]
        return made

    return rest


def _world_alone(keys: Any, *, text: str, formed: int | None, closed: bool) -> list:
    return world_write(keys, text=text, formed=None)


def _wish_stays(keys: Any, *, text: str, formed: str | None, closed: bool) -> list:
    return world_write(keys, text=text, formed=formed)


def _one_more(world: Any, *, members: Any) -> int:
    return 1 + (world.generation if world else 0)


def _nobody(*args: Any, **kwargs: Any) -> tuple:
    return ()


def _all_ask(member: Any, *, after: int = 0) -> bool:
    return member.state is MemberState.JOINING


MUTANTS = (
    Mutant(
        name="a wish stays when the job is closed",
        rules=Rules(world_write=_wish_stays, wishes=(paused(NO_WISH, reason=""),)),
        breaks="what was wished of a job outlives it",
    ),
    Mutant(
        name="the world's revision is not compared",
        rules=Rules(world_fence=_without(world_fence, 0)),
        breaks="two worlds of generation 1",
        start=lambda _rules: beginning(),
        long=True,
    ),
    Mutant(
        name="the leader's own key is not compared",
        rules=Rules(world_fence=_without(world_fence, 1)),
        breaks="leads no more and has written",
        start=lambda _rules: beginning(),
    ),
    Mutant(
        name="the generation is not written with its world",
        rules=Rules(world_write=_world_alone),
        breaks="accepted after 2.",
    ),
    Mutant(
        name="a commit does not compare the generation",
        rules=Rules(commit_fence=_without(commit_fence, 0)),
        breaks="accepted after 2.",
    ),
    Mutant(
        name="a commit does not compare the lease",
        rules=Rules(commit_fence=_without(commit_fence, 1)),
        breaks="whose lease has ended",
    ),
    Mutant(
        name="a commit does not compare the record",
        rules=Rules(commit_fence=_without(commit_fence, 2)),
        breaks="has taken the record back",
    ),
    Mutant(
        name="a lost world is written again whatever is there",
        rules=Rules(restore_fence=_without(restore_fence, 0)),
        breaks="restored over",
        start=forgotten,
    ),
    Mutant(
        name="a refused leader does not read the world again",
        rules=Rules(read_after_refusal=False),
        breaks="not placed in the end",
        start=lambda _rules: beginning(),
        long=True,
    ),
    Mutant(
        name="a watch goes on after a gap without telling all there is",
        rules=Rules(reset_after_gap=False),
        breaks="not placed in the end",
    ),
    Mutant(
        name="an agent enters any world that it has a seat in",
        rules=Rules(only_newer=False),
        breaks="enters generation 1 after 1",
    ),
    Mutant(
        name="agents at work do not look at the world again",
        rules=Rules(regroup=False),
        breaks="not placed in the end",
    ),
    Mutant(
        name="keys that are gone are not written again",
        rules=Rules(register_again=False),
        breaks="not placed in the end",
    ),
    Mutant(
        name="an agent that never saw its generation does not say that it has ended it",
        rules=Rules(says_missed=False),
        breaks="not placed in the end: formed 2",
        start=lambda _rules: beginning(),
    ),
    Mutant(
        name="an agent enters a world before its workers of the last one have ended",
        rules=Rules(ends_first=False),
        breaks="while its workers of 1 run",
    ),
    Mutant(
        name="an agent whose workers failed takes a seat that it was given before that was heard",
        rules=Rules(says_unheard=lambda member: member.report is None),
        breaks="in generation 1 was never heard",
    ),
    Mutant(
        name="an agent that is done does not say so again of a generation that it was given later",
        rules=Rules(says_unheard=lambda member: member.report is not None),
        breaks="not placed in the end",
        long=True,
    ),
    Mutant(
        name="an agent that said nothing for a seat that is there no more goes on saying nothing",
        rules=Rules(says_unsaid=False),
        breaks="not placed in the end",
        start=losing,
    ),
    Mutant(
        name="an agent takes a seat though its keys were gone since that was given",
        rules=Rules(knows_since=False),
        breaks="has a seat in 3 and still runs 1",
        start=given,
        long=True,
    ),
    Mutant(
        name="a generation is one more than the last world's, whatever members know",
        patches=((seating, "next_generation", _one_more),),
        breaks="two worlds of generation 1",
        long=True,
    ),
    Mutant(
        name="members that come too late are taken for newcomers",
        patches=((round_open, "_left_out", _nobody),),
        breaks="has a seat in 3 and still runs 1",
        long=True,
    ),
    Mutant(
        name="members get a seat before they have ended their generation",
        patches=((view, "asks", _all_ask),),
        breaks="has a seat in",
        long=True,
    ),
)
