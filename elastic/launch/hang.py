"""Hang: whether a worker does what it does for so long that it will never end. Pure.

Limits are learned from how long the same thing took before, never one for all: a first step may compile, a save may
be long. A worker that waits inside a collective is not to blame: whoever has not come to it is, and its own agent
sees that. Only where nobody is found does waiting itself have a limit, the longest of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elastic.activity import Doing, Seen

TIMES_LONGEST = 5.0
ENOUGH = 2
"""How often something must have been seen for its limit to be learned: the first time is not like the others."""


_NEVER_LEARNED = {Doing.WAITING, Doing.STARTING, Doing.BETWEEN, Doing.FIRST, Doing.FLUSH}
"""It lasts as long as others, the membership, a compiler, a disk or the user's own code between steps want."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """`least_s`: nothing is called hung before. `unknown_s`: the limit where nothing was learned yet."""

    least_s: float
    unknown_s: float


@dataclass(frozen=True, kw_only=True)
class Hung:
    """A worker that hangs, and why it is thought so."""

    pid: int
    doing: Doing
    for_s: float
    reason: str


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """Who hangs now; and when to look again."""

    hung: tuple[Hung, ...]
    until_s: float


def limit_s(seen: Seen, *, bounds: Bounds) -> float:
    """How long this worker may do what it does."""
    times = seen.times[seen.doing]
    if seen.doing in _NEVER_LEARNED or times.count < ENOUGH:
        return bounds.unknown_s
    return max(bounds.least_s, TIMES_LONGEST * times.longest_s)


def judge(workers: Sequence[Seen], *, now_s: float, awake_since_s: float, bounds: Bounds) -> Outlook:
    """Look at all workers of a node.

    Args:
        awake_since_s: what was before does not count: this node slept, and its workers with it.
    """
    hung: list[Hung] = []
    until_s = now_s + bounds.unknown_s
    for seen in workers:
        limit = limit_s(seen, bounds=bounds)
        for_s = now_s - max(seen.since_s, awake_since_s)
        if for_s < limit:
            until_s = min(until_s, now_s + limit - for_s)
            continue
        times = seen.times[seen.doing]
        usual = f"{times.longest_s:.1f} s at most so far" if times.count else "never seen to end before"
        what = seen.doing.name.lower()
        reason = f"{what} for {for_s:.1f} s, more than the limit of {limit:.1f} s ({usual})"
        hung.append(Hung(pid=seen.pid, doing=seen.doing, for_s=for_s, reason=reason))
    return Outlook(hung=tuple(hung), until_s=until_s)
