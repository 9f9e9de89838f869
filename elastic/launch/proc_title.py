"""Process title: makes /proc (and so ps) show a fork's own command line and variables, not its zygote's.

The kernel reads both from the memory where it once put them (proc(5)); writing there is what setproctitle does too.
There is as much room as the zygote's own took up, so it brings more than it needs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_FIRST_FIELD = 3  # of what follows the name in /proc/self/stat
_ARG_START, _ENV_END = 48, 51


@dataclass(frozen=True, kw_only=True)
class Area:
    """Memory of this process, from `start` up to `end`."""

    start: int
    end: int

    def write(self, strings: Sequence[bytes]) -> None:
        """Put strings there, each with its end; those that do not fit are left out, the rest is zeros."""
        ctypes.memmove(self.start, fitted(strings, room=self.end - self.start), self.end - self.start)


def areas(stat: str) -> tuple[Area, Area] | None:
    """Where arguments and variables lie, from /proc/self/stat; None where the kernel does not tell."""
    fields = stat.rpartition(")")[2].split()[_ARG_START - _FIRST_FIELD : _ENV_END - _FIRST_FIELD + 1]
    numbers = [int(field) for field in fields]
    if len(numbers) < 4 or 0 in numbers:
        return None
    return Area(start=numbers[0], end=numbers[1]), Area(start=numbers[2], end=numbers[3])


def fitted(strings: Sequence[bytes], *, room: int) -> bytes:
    """Strings as the kernel lays them out, in exactly so many bytes."""
    kept = b""
    for string in strings:
        if len(kept) + len(string) + 1 > room:
            break
        kept += string + b"\0"
    return kept.ljust(room, b"\0")


def show(command: Sequence[bytes], environ: Mapping[bytes, bytes] | None = None) -> None:
    """Have /proc show this. Variables only when os.environ was wholly replaced: nothing may point to them any more."""
    found = areas(Path("/proc/self/stat").read_text())
    if found is None:
        return
    arguments, variables = found
    arguments.write(command)
    if environ is not None:
        variables.write([name + b"=" + value for name, value in environ.items()])
