"""Stall: while workers run and the world does not advance, find out who is to blame. Pure but for three small edges.

Training that stands still says nothing about why: a peer may be frozen, its machine gone, the net cut, or one of our
own workers stopped. So the agent asks the agents of other seats for their name, and looks whether a worker of its own
is stopped. It decides nothing about others: what it found goes into its member key, and the leader weighs it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from elastic.rendezvous.model import ProbeResult, World
from elastic.rendezvous.probe import Target

LEAST_PATIENCE_S = 0.5
"""A step may take so long without a question, however short steps usually are."""
PATIENT_STEPS = 3.0
UNKNOWN_PATIENCE_S = 3.0
"""Where no step time is known: before the first steps of a generation."""
AGAIN_S = 1.0
"""From one round of questions to the next, while nothing advances."""
SILENCE_S = 0.5
"""How long an agent may take to say its name while a known step time is exceeded."""
PATIENT_SILENCE_S = 1.0
"""The same while workers start, when machines are busy."""
MOST_PEERS = 32
"""Each agent asks at most so many others, its neighbours in rank order: the cost of a stall does not grow with it."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast this node's workers advance, from what they tell. Seconds of one monotonic clock."""

    advanced_s: float
    """When a worker last told of anything done."""
    step: int = 0
    steps: int = 0
    """Steps seen in this generation, without the first: that one is not like the others."""
    mean_step_s: float = 0.0
    longest_pause_s: float = 0.0
    """The longest time between two steps: a save, an evaluation."""

    def advanced(self, *, step: int | None, now_s: float) -> Pace:
        """After a worker's word; `step` where it is that a step is done. Other ranks tell of the same step."""
        if step is None or step <= self.step:
            return replace(self, advanced_s=now_s)
        took_s = now_s - self.advanced_s
        if not self.step:
            return replace(self, advanced_s=now_s, step=step)
        weight = 1 / min(self.steps + 1, 20)
        return replace(
            self,
            advanced_s=now_s,
            step=step,
            steps=self.steps + 1,
            mean_step_s=self.mean_step_s + weight * (took_s - self.mean_step_s),
            longest_pause_s=max(took_s, 0.9 * self.longest_pause_s),
        )

    @property
    def known(self) -> bool:
        """Whether steps take a known time by now."""
        return self.steps >= 2

    @property
    def patience_s(self) -> float:
        """How long nothing may be heard before somebody is asked."""
        if not self.known:
            return UNKNOWN_PATIENCE_S
        return max(LEAST_PATIENCE_S, PATIENT_STEPS * self.mean_step_s, min(1.5 * self.longest_pause_s, 60.0))


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What an agent knows when it decides.

    `unconfirmed_since_s`: since when its lease is not certain, None while it is. `silent`: the seats that did not
    answer when asked last at `asked_s`, None where nobody was asked since the world advanced last.
    """

    now_s: float
    pace: Pace
    peers: int
    asked_s: float | None = None
    silent: frozenset[str] | None = None
    unconfirmed_since_s: float | None = None
    unconfirmed_limit_s: float = 300.0


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Nothing to do until then."""

    until_s: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class Ask:
    """Look at the own workers, and ask the others for their names."""

    reason: str
    silence_s: float


@dataclass(frozen=True, kw_only=True)
class GiveUp:
    """This agent cannot know whether its generation is still the present one: its workers must go."""

    reason: str


def decide(found: Situation) -> Patience | Ask | GiveUp:
    """What to do about a world that may stand still."""
    quiet_s = found.now_s - found.pace.advanced_s
    until_s = found.pace.advanced_s + found.pace.patience_s
    stalled = found.now_s >= until_s
    if found.unconfirmed_since_s is not None:
        for_s = found.now_s - found.unconfirmed_since_s
        if for_s >= found.unconfirmed_limit_s:
            return GiveUp(reason=f"etcd has not confirmed this agent for {for_s:.0f} s, the most allowed")
        if stalled and found.peers and found.silent is not None and len(found.silent) == found.peers:
            return GiveUp(
                reason=f"etcd does not confirm this agent, no step was done for {quiet_s:.1f} s and none of the "
                f"{found.peers} other agents asked answers: this node may be cut off, and the others go on without it"
            )
        until_s = min(until_s, found.unconfirmed_since_s + found.unconfirmed_limit_s) if not stalled else until_s
    if not stalled:
        # No later: patience shrinks as steps are seen, from the unknown of a generation's begin above all.
        return Patience(until_s=min(until_s, found.now_s + LEAST_PATIENCE_S), reason="the world advances")
    if found.asked_s is not None and found.now_s < found.asked_s + AGAIN_S:
        return Patience(until_s=found.asked_s + AGAIN_S, reason=f"asked, and no step was done for {quiet_s:.1f} s")
    return Ask(
        reason=f"no step was done for {quiet_s:.1f} s",
        silence_s=SILENCE_S if found.pace.known else PATIENT_SILENCE_S,
    )


def targets(world: World, *, agent: str, most: int = MOST_PEERS) -> dict[str, Target]:
    """Whom to ask: the seats nearest in rank order, on both sides, so that each is asked by as many as it asks."""
    seats = world.seats
    own = next((index for index, seat in enumerate(seats) if seat.agent == agent), None)
    if own is None:
        return {}
    others = [seats[(own + offset) % len(seats)] for offset in range(1, len(seats))]
    if len(others) > most:
        half = most // 2
        others = others[: most - half] + others[-half:]
    return {seat.agent: Target(address=seat.address, port=seat.probe_port) for seat in others}


def silent(results: Mapping[str, ProbeResult]) -> frozenset[str]:
    """Those that cannot be reached: they did not answer, or refused."""
    return frozenset(agent for agent, result in results.items() if result is not ProbeResult.ALIVE)


def stopped(pids: Sequence[int], *, proc: Path = Path("/proc")) -> tuple[int, ...]:
    """Processes that somebody stopped (SIGSTOP). One that a debugger holds is not among them."""
    return tuple(pid for pid in pids if _state(proc / str(pid) / "stat") == "T")


def kill_stopped(pid: int) -> None:
    """End a stopped worker with all it forked. It leads a group of its own."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it ended meanwhile


def _state(stat: Path) -> str:
    try:
        # The name in parentheses may hold anything; the state follows its last one.
        return stat.read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return ""
