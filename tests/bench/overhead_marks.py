"""Marks: what a training has cost up to some of its steps, for both sides of the overhead benchmark."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def tree_cpu_s(pid: int) -> float:
    """CPU seconds of a process and of all below it, ended ones that were waited for included (Linux /proc)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    own = sum(int(ticks) for ticks in fields[11:15]) / _TICKS_PER_S
    return own + sum(tree_cpu_s(int(child)) for child in children.split())


class Marks:
    """Called after every step; writes a line at each of the steps asked for, by rank 0 alone."""

    def __init__(self) -> None:
        """$MARKS: the file; $MARK_STEPS: step numbers with commas between them."""
        self._file = Path(os.environ["MARKS"])
        self._steps = {int(step) for step in os.environ["MARK_STEPS"].split(",")}
        self._first = int(os.environ.get("RANK", "0")) == 0

    def __call__(self, step: int) -> None:
        if self._first and step in self._steps:
            line = {"step": step, "wall_s": time.perf_counter(), "cpu_s": tree_cpu_s(os.getppid())}
            with self._file.open("a") as file:
                file.write(json.dumps(line) + "\n")
