"""Launches: the mark in a root of who works there, so that a run started again goes on and two at once are refused.

A run may be launched many times, each time under another --rdzv-id (a scheduler's number for the job). The agent that
leads a launch keeps the mark alive; who comes under another id waits until that launch has ended, is silent, or goes on
for so long that it is refused.
"""

from __future__ import annotations

import enum
import json
import os
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass

from elastic.checkpoint.layout import LAUNCH, MAX_SMALL_BYTES, load_json, take
from elastic.checkpoint.storage import Storage
from elastic.clock import Clock
from elastic.errors import CheckpointError, RunMismatch

BEAT_S = 5.0
"""How often a launch gives a sign of life."""
SILENT_S = 30.0
"""A launch whose mark has not changed for so long is over; one whose mark still changes after so long is at work."""
UNREADABLE = "(unreadable)"
"""The launch of a mark that is damaged: nobody's, so that it takes nothing from a launch at work."""
_POLL_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Who works in a root. `agent` wrote this, for the `beat`-th time; `over`: nobody of the launch is left."""

    launch: str
    agent: str
    beat: int
    over: bool = False


class Turn(enum.Enum):
    """What somebody may do who comes to a root."""

    WAIT = "wait"
    GO = "go"
    REFUSED = "refused"


@dataclass(frozen=True, kw_only=True)
class TurnVerdict:
    """Whose turn it is, and why."""

    turn: Turn
    reason: str


def judge(mark: Mark | None, *, launch: str, waited_s: float, still_s: float) -> TurnVerdict:
    """May this launch work here? `waited_s`: how long it has looked; `still_s`: since the last change."""
    if mark is None or mark.launch == launch:
        return TurnVerdict(turn=Turn.GO, reason="no other launch works here")
    if mark.over:
        return TurnVerdict(turn=Turn.GO, reason=f"launch {mark.launch!r} has ended")
    if still_s >= SILENT_S:
        return TurnVerdict(
            turn=Turn.GO, reason=f"launch {mark.launch!r} has given no sign of life for {SILENT_S:.0f} s"
        )
    if waited_s - still_s >= SILENT_S:
        return TurnVerdict(turn=Turn.REFUSED, reason=f"launch {mark.launch!r} is at work")
    return TurnVerdict(turn=Turn.WAIT, reason=f"launch {mark.launch!r} may be at work")


def await_turn(root: str, *, launch: str, storage: Storage, clock: Clock, tell: Callable[[str], None]) -> Mark | None:
    """Wait until this launch may work in a root; the mark that it found, to be replaced. `tell` hears why it waits.

    Raises:
        RunMismatch: another launch is at work there.
        CheckpointError: the mark cannot be looked for.
    """
    began_s = changed_s = clock.monotonic_s()
    seen = mark = _looked_for(root, storage)
    told = False
    while True:
        now_s = clock.monotonic_s()
        if mark != seen:
            seen, changed_s = mark, now_s
        verdict = judge(mark, launch=launch, waited_s=now_s - began_s, still_s=now_s - changed_s)
        if verdict.turn is Turn.GO:
            if mark is not None and mark.launch != launch:
                tell(f"{verdict.reason}: the run in {root} goes on from there")
            return mark
        if verdict.turn is Turn.REFUSED:
            raise RunMismatch(
                f"{root} is in use: {verdict.reason} there, and this is launch {launch!r}. To continue that run, end "
                f"that launch first; to take part in it, start with --rdzv-id={mark.launch if mark else ''}; to begin "
                "another run, choose another checkpoint.save_path."
            )
        if not told:
            tell(f"{verdict.reason} in {root}: waiting for its end, or for {SILENT_S:.0f} s without a sign of it")
            told = True
        clock.sleep(_POLL_S)
        mark = _looked_for(root, storage)


def read_mark(root: str, *, storage: Storage) -> Mark | None:
    """The mark of a root, None where there is none. One that is damaged is of an unknown launch. Raises OSError."""
    path = os.path.join(root, LAUNCH)
    if storage.size_bytes(path) is None:
        return None
    data = storage.read(path)
    try:
        plain = load_json(data, what=LAUNCH, limit_bytes=MAX_SMALL_BYTES)
        text, agent = (take(plain, name, str, what=LAUNCH) for name in ("launch", "agent"))
        return Mark(
            launch=text,
            agent=agent,
            beat=take(plain, "beat", int, what=LAUNCH),
            over=take(plain, "over", bool, what=LAUNCH),
        )
    except ValueError:
        return Mark(launch=UNREADABLE, agent="", beat=zlib.crc32(data))


def write_mark(root: str, mark: Mark, *, storage: Storage) -> None:
    """Make this the mark of a root. Raises OSError."""
    storage.replace(os.path.join(root, LAUNCH), json.dumps(asdict(mark), indent=1).encode())


def _looked_for(root: str, storage: Storage) -> Mark | None:
    try:
        return read_mark(root, storage=storage)
    except OSError as error:
        raise CheckpointError(
            f"{root}/{LAUNCH} cannot be looked for: {error}. Check access to the save path."
        ) from error
