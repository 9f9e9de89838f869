"""Footprint: what a process holds that a fork of it could not share, found before and after foreign code was loaded."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

MOST_TOLD = 3


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Threads are lost in a fork; files, sockets and children would be shared by workers that know nothing of it."""

    threads: int
    files: frozenset[str]
    """What the open descriptors lead to, each with its number."""
    children: frozenset[int]
    cuda: bool = False
    """Whether torch has set up a GPU, which does not outlive a fork."""


def look(*, cuda: bool = False, proc: Path = Path("/proc/self")) -> Footprint:
    """This process, now. Linux; proc(5)."""
    tasks = [int(name) for name in os.listdir(proc / "task")]
    children = [int(pid) for task in tasks for pid in _words(proc / "task" / str(task) / "children")]
    files = []
    for name in os.listdir(proc / "fd"):
        try:
            files.append(f"{os.readlink(proc / 'fd' / name)} (descriptor {name})")
        except FileNotFoundError:
            continue  # the one that listed them
    return Footprint(threads=len(tasks), files=frozenset(files), children=frozenset(children), cuda=cuda)


def obstacle(before: Footprint, after: Footprint) -> str:
    """What came meanwhile that forbids a fork, in words; empty where nothing did."""
    if after.cuda:
        return "it sets up CUDA, which a fork cannot use"
    if after.threads > before.threads:
        return f"it starts {_counted(after.threads - before.threads, 'thread')}, which a fork would lose"
    if born := after.children - before.children:
        return f"it starts {_counted(len(born), 'process', 'processes')}, which workers would share"
    if opened := sorted(after.files - before.files):
        shown = ", ".join(opened[:MOST_TOLD]) + (", …" if len(opened) > MOST_TOLD else "")
        return f"it keeps open what workers would share: {shown}"
    return ""


def _counted(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []  # the thread has ended, or this kernel does not list children
