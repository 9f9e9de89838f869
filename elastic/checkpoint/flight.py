"""A save in flight, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elastic.checkpoint.background import Pending
from elastic.checkpoint.commit import Saving
from elastic.checkpoint.draft import SaveMeta
from elastic.checkpoint.places import share
from elastic.checkpoint.seams import Group
from elastic.checkpoint.snapshots import Copied, Snapshots
from elastic.clock import Clock

_PATIENCE_S = 10.0
"""How long a save that is due waits at least for the one before it."""
_ASKING_S = 0.5
"""The same where only the committer's answer is missing: etcd may be away for long, and takes milliseconds else."""
_OUTLAST_S = 30.0
_LOOK_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Flight:
    """A save under way. `copied`: what is written; None where there is nothing to write, since the copy failed."""

    saving: Saving
    meta: SaveMeta
    copied: Copied | None
    begun_s: float
    stall_s: float
    """How long training waited for it so far."""
    waited_s: float = 0.0
    """How long saves that fell due after it have waited for it."""
    stalled: str = ""
    """What was said when that was in vain."""


def stalls(flight: Flight, *, usual_s: float, group: Group, clock: Clock) -> str:
    """Wait until all ranks have done their part of a save, but not for ever: no stalled disk shall stop training.

    Every rank calls it. `usual_s`: how long saves took so far; twice as much is waited for each save in all: one that
    stalls longer is only looked at from then on. Returns what there is to say where that was not enough, else "".

    Raises:
        PeerLost: from the group.
    """
    saving, begun_s = flight.saving, clock.monotonic_s() - flight.waited_s
    while not saving.ready and clock.monotonic_s() < begun_s + _patience_s(saving, usual_s=usual_s):
        clock.sleep(_LOOK_S)
    asking = saving.asking and not saving.ready
    slow = [rank for rank, ready in enumerate(share(group, saving.ready)) if not ready]
    if not slow:
        return ""
    for_s = clock.monotonic_s() - flight.begun_s
    what = f"iteration {flight.meta.iteration} is being written by ranks {slow} for {for_s:.0f} s: does a disk stall?"
    if asking:
        what = f"whether iteration {flight.meta.iteration} counts is being asked for {for_s:.0f} s: does etcd answer?"
    return f"{what} Training goes on"


def _patience_s(saving: Saving, *, usual_s: float) -> float:
    return _ASKING_S if saving.asking else max(_PATIENCE_S, 2 * usual_s)


@dataclass(frozen=True, kw_only=True)
class GivenUp:
    """What is left to be done of a save that was given up; it refers to no group."""

    iteration: int
    generation: int
    working: Pending[object]


def outlast(given_up: Sequence[GivenUp], *, generation: int, clock: Clock) -> str:
    """Wait for saves of this generation that were given up: what they have begun may count still, and not after what
    comes now. Returns what there is to say where one does not end.
    """
    until_s = clock.monotonic_s() + _OUTLAST_S
    for each in given_up:
        while each.generation == generation and not each.working.done():
            if clock.monotonic_s() >= until_s:
                return f"the save of iteration {each.iteration}, which was given up, may count still"
            clock.sleep(_LOOK_S)
    return ""


def release(left: list[Flight], now: Flight | None, snapshots: Snapshots) -> list[Flight]:
    """Let memory that nobody reads any more be written again. `left`: saves of older generations, which come to
    nothing; returns those that still read theirs.
    """
    # Of parts only when that is known of all ranks, new ones too: they choose the next arena alike. So those of older
    # generations at once, and the present one's at its end.
    done = [each for each in left if snapshots.parts or each.saving.written]
    if now is not None and now.saving.written and not snapshots.parts:
        done.append(now)
    for flight in done:
        if flight.copied is not None:
            snapshots.give_back(flight.copied)
    return [each for each in left if not (snapshots.parts or each.saving.written)]


@dataclass(frozen=True, kw_only=True)
class SaveResult:
    """How a save ended, the same on every rank."""

    saved: bool
    iteration: int
    total_bytes: int
    seconds: float
    reason: str
    stall_s: float = 0.0
    """How long training waited for it."""
    earlier: SaveResult | None = None
    """How the save before it ended, where that one was waited for first."""


def unsaved(meta: SaveMeta, reason: str, *, earlier: SaveResult | None = None) -> SaveResult:
    """Nothing was saved, or nothing yet."""
    return SaveResult(saved=False, iteration=meta.iteration, total_bytes=0, seconds=0.0, reason=reason, earlier=earlier)
