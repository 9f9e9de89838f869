"""Until: wait for a condition with a deadline; for its news where somebody tells of it, else by looking again."""

from __future__ import annotations

import os
import select
from collections.abc import Callable

from elastic.clock import SYSTEM_CLOCK
from elastic.local.follow import Follower

LOOK_S = 0.01
"""How often to look where nothing tells."""


def until(
    condition: Callable[[], bool],
    *,
    what: str,
    limit_s: float = 30.0,
    news: Callable[[float], object] = SYSTEM_CLOCK.sleep,
    look_s: float = LOOK_S,
) -> None:
    """Until it is true. Raises AssertionError at the limit.

    Args:
        what: names it in the error.
        news: returns when something happened that may have made it true, or after the seconds that it is given.
        look_s: how often to look again, whether there is news or not.
    """
    until_s = SYSTEM_CLOCK.monotonic_s() + limit_s
    while not condition():
        assert SYSTEM_CLOCK.monotonic_s() < until_s, f"{what} did not happen within {limit_s:g} s"
        news(look_s)


def of(follower: Follower) -> Callable[[float], object]:
    """The news of a run's events, which it takes in."""

    def news(limit_s: float) -> None:
        follower.wait(limit_s=limit_s)
        follower.read()

    return news


def ended(pid: int, *, limit_s: float) -> bool:
    """Wait for a process's end: the kernel tells, also of one that is not our child."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], limit_s)[0])
    finally:
        os.close(fd)
