"""Room for the memory tier: what there is, what it takes, and whether that goes together. Linux; without torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

SPARE = 0.1
"""Share of what is free that stays free: training itself grows, too."""
SWITCH = "checkpoint.memory_every_steps: 0 switches the memory tier off"

_UNLIMITED_BYTES = 1 << 60
"""Limits above it are how the older control groups say that there is none."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """Bytes that can be had before something breaks, by what would break. None: nothing is known to."""

    available_bytes: int | None
    """What the machine has left."""
    cgroup_bytes: int | None
    """What this control group may still take."""


@dataclass(frozen=True, kw_only=True)
class RoomVerdict:
    """Whether there is room, and why not."""

    enough: bool
    reason: str


def judge_room(needed_bytes: int, room: Room) -> RoomVerdict:
    """Whether so many bytes more leave SPARE of what is free."""
    for name, free_bytes in (("this machine", room.available_bytes), ("the control group", room.cgroup_bytes)):
        if free_bytes is not None and needed_bytes > free_bytes * (1 - SPARE):
            return RoomVerdict(
                enough=False,
                reason=f"two snapshots of the state take {_mb(needed_bytes)} more of memory, and {name} has "
                f"{_mb(free_bytes)} left, of which {SPARE:.0%} must stay free. Give it more memory; {SWITCH}",
            )
    return RoomVerdict(enough=True, reason=f"{_mb(needed_bytes)} more are there")


def look_for_room(read: Callable[[str], str | None] | None = None) -> Room:
    """What the kernel says now. `read`: the text of a file, or None where it is not there."""
    read = read or _read
    available = None
    for line in (read("/proc/meminfo") or "").splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    return Room(available_bytes=available, cgroup_bytes=_cgroup_bytes(read))


def _cgroup_bytes(read: Callable[[str], str | None]) -> int | None:
    """The least that any control group above this process leaves."""
    left: list[int] = []
    for line in (read("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers == "":
            base, limit, used = "/sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            base, limit, used = "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        # Inside a container the path may be that of the host, and only the root is to be seen.
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts) + 1):
            place = "/".join([base, *parts[:depth]])
            most, now = _number(read(f"{place}/{limit}")), _number(read(f"{place}/{used}"))
            if most is not None and now is not None and most < _UNLIMITED_BYTES:
                left.append(max(0, most - now + _reclaimable(read(f"{place}/memory.stat"))))
    return min(left, default=None)


def _reclaimable(stat: str | None) -> int:
    """What counts as used but is given up at need: files that were read."""
    wanted = {"inactive_file", "total_inactive_file"}
    found = [int(line.split()[1]) for line in (stat or "").splitlines() if line.split(" ")[0] in wanted]
    return max(found, default=0)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.strip().isdigit() else None


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return None


def _mb(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"


def anonymous_arena(name: str) -> tuple[int, str]:
    """Shared memory that is gone with its last user: (descriptor to be kept, path for others of this user)."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC)
    return fd, f"/proc/{os.getpid()}/fd/{fd}"
