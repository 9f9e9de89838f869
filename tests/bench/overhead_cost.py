"""What steps cost, for all parts of the overhead benchmark."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of some steps, in seconds. CPU: of torchrun and everything below it."""

    wall_s: float = 0.0
    cpu_s: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(wall_s=self.wall_s + other.wall_s, cpu_s=self.cpu_s + other.cpu_s)


def tree_cpu_s(pid: int) -> float:
    """CPU seconds of a process and of all below it, ended ones that were waited for included (Linux /proc)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    own = sum(int(ticks) for ticks in fields[11:15]) / _TICKS_PER_S
    return own + sum(tree_cpu_s(int(child)) for child in children.split())
