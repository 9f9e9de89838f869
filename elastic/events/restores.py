"""Restores: the event that tells of one, and in words how much of the state came from where, and how fast."""

from __future__ import annotations

from dataclasses import dataclass

from elastic.events.kinds import Event

_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


@dataclass(frozen=True, kw_only=True)
class Restored(Event):
    """State was restored, or the run begins (`iteration` 0, tier "none")."""

    kind = "restored"
    tier: str
    iteration: int
    consumed_samples: int
    seconds: float
    reason: str
    arrived: tuple[tuple[str, int, float], ...] = ()
    """What came to this rank for it, as (tier, bytes, seconds that moving them took), through tries that failed, too.

    Not in older files. The seconds are of the transfer alone, or of reading: agreement and waiting are in `seconds`.
    """
    givers: tuple[int, ...] = ()
    """The ranks that the bytes of tier "peer" came from."""


def arrivals(event: Restored) -> str:
    """`12.3 MB from rank 0 in 0.02 s (615.0 MB/s)`, way by way; "" where nothing came, or none was told."""
    return ", ".join(
        f"{size(of_bytes)} from {_source(tier, event.givers)}{_time(of_bytes, seconds)}"
        for tier, of_bytes, seconds in event.arrived
    )


def size(size_bytes: float) -> str:
    """Bytes as people say them: `12.3 MB`."""
    for unit, of_bytes in _UNITS:
        if size_bytes >= of_bytes:
            return f"{size_bytes / of_bytes:.1f} {unit}"
    return f"{size_bytes:.0f} B"


def rate(size_bytes: int, seconds: float) -> str:
    """`615.0 MB/s`; "" where no time was measured."""
    return f"{size(size_bytes / seconds)}/s" if seconds > 0 else ""


def _source(tier: str, givers: tuple[int, ...]) -> str:
    if tier != "peer" or not givers:
        return tier
    shown = ", ".join(map(str, givers[:4])) + (f" and {len(givers) - 4} more" if len(givers) > 4 else "")
    return f"rank {shown}" if len(givers) == 1 else f"ranks {shown}"


def _time(size_bytes: int, seconds: float) -> str:
    if not (told := rate(size_bytes, seconds)):
        return ""
    return f" in {seconds:.2f} s ({told})" if seconds >= 0.01 else f" in {1000 * seconds:.2f} ms ({told})"
