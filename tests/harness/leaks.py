"""Finds what a test left behind: processes, threads, environment, shared memory, listening ports.

Orphans count too: the test process adopts them (`adopt_orphans`), so that an agent in a session of its own, or a
worker whose agent was killed, is still seen as a descendant.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from elastic.clock import SYSTEM_CLOCK, Clock

GRACE_S = 3.0
"""What is on its way out at the end of a test may take so long to go."""

_PR_SET_CHILD_SUBREAPER = 36
_SHARED_MEMORY = Path("/dev/shm")

OUR_THREADS = "elastic"
"""Daemon threads with this prefix are ours and must end; others (of libraries, idle pools) may stay."""

LIBRARY_VARIABLES = ("PYTEST_CURRENT_TEST", "KMP_", "TORCHINDUCTOR_", "TRITON_", "CUDA_MODULE_LOADING", "PYTORCH_NVML")
"""Variables that libraries set for themselves."""

LIBRARY_PROCESSES = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "aardvark-dns")
"""Processes that the standard library keeps as long as the test process lives, and podman for all containers."""


def adopt_orphans() -> None:
    """Make this process the parent of its descendants' orphans (Linux's child subreaper)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a test could leave something in, at one moment."""

    processes: Mapping[int, str]
    """Living descendants, with their command lines."""
    threads: frozenset[threading.Thread]
    environment: Mapping[str, str]
    shared_memory: frozenset[str]
    ports: frozenset[str]
    """Addresses that this process listens on."""


def look() -> Surroundings:
    """Take stock."""
    return Surroundings(
        processes=_descendants(),
        threads=frozenset(thread for thread in threading.enumerate() if _counts(thread)),
        environment={name: value for name, value in os.environ.items() if not name.startswith(LIBRARY_VARIABLES)},
        shared_memory=frozenset(os.listdir(_SHARED_MEMORY)) if _SHARED_MEMORY.is_dir() else frozenset(),
        ports=_listening(),
    )


def leaks(before: Surroundings, *, clock: Clock = SYSTEM_CLOCK, grace_s: float) -> list[str]:
    """What is there now and was not before, each as a sentence; empty once all is gone within the grace."""
    deadline_s = clock.monotonic_s() + grace_s
    found = compare(before, look())
    while found and clock.monotonic_s() < deadline_s:
        gc.collect()  # A store or socket in a reference cycle goes only now.
        clock.sleep(0.02)
        found = compare(before, look())
    return found


def compare(before: Surroundings, after: Surroundings) -> list[str]:
    """The differences that count, as sentences."""
    found = [f"process {pid}: {after.processes[pid]}" for pid in sorted(set(after.processes) - set(before.processes))]
    found += [f"thread {thread.name!r}" for thread in after.threads - before.threads]
    for name in sorted(before.environment.keys() | after.environment.keys()):
        old, new = before.environment.get(name), after.environment.get(name)
        if old != new:
            found.append(f"environment {name}: {old!r} became {new!r}")
    unclaimed = [name for name in after.shared_memory - before.shared_memory if not _used_by_others(name)]
    found += [f"/dev/shm/{name}" for name in sorted(unclaimed)]
    found += [f"listening on {address}" for address in sorted(after.ports - before.ports)]
    return found


def clean_up(before: Surroundings) -> None:
    """Take away what would disturb the next test: processes and environment."""
    for pid in set(_descendants()) - set(before.processes):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # It went by itself.
    for name in {name for name in os.environ if not name.startswith(LIBRARY_VARIABLES)} - set(before.environment):
        del os.environ[name]
    os.environ.update(before.environment)


def _counts(thread: threading.Thread) -> bool:
    return not thread.daemon or thread.name.startswith(OUR_THREADS)


def _descendants() -> dict[int, str]:
    """Processes below this one that are neither zombies nor the standard library's helpers."""
    parents: dict[int, int] = {}
    for pid in _pids():
        # After the last parenthesis, since a command's name may hold anything: state, parent, ...
        fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        if len(fields) > 1 and fields[0] != "Z":
            parents[pid] = int(fields[1])
    return {pid: command for pid in parents if _is_below(pid, parents) and (command := _command(pid))}


def _is_below(pid: int, parents: Mapping[int, int]) -> bool:
    me = os.getpid()
    while pid in parents and pid != me:
        pid = parents[pid]
        if pid == me:
            return True
    return False


def _command(pid: int) -> str | None:
    """The command line; None for a process that is gone or that the standard library keeps."""
    words = _read(f"/proc/{pid}/cmdline").split("\0")
    text = " ".join(words).strip()
    return None if not text or any(helper in text for helper in LIBRARY_PROCESSES) else text[:200]


def _listening() -> frozenset[str]:
    inodes = {inode for link in _links("/proc/self/fd") if (inode := link.removeprefix("socket:[").rstrip("]")) != link}
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in _read(table).splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == "0A" and fields[9] in inodes:
                found.add(f"port {int(fields[1].rpartition(':')[2], 16)}")
    return frozenset(found)


def _used_by_others(name: str) -> bool:
    """Whether a living process outside of this test run holds the file: then it is another run's."""
    path = f"{_SHARED_MEMORY}/{name}"
    ours = {os.getpid(), *_descendants()}
    return any(_holds(pid, path) for pid in _pids() if pid not in ours)


def _holds(pid: int, path: str) -> bool:
    return path in _read(f"/proc/{pid}/maps") or path in _links(f"/proc/{pid}/fd")


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _links(directory: str) -> list[str]:
    found = []
    try:
        names = os.listdir(directory)
    except OSError:
        return found  # The process is gone, or not ours to look into.
    for name in names:
        with contextlib.suppress(OSError):  # Closed while we looked.
            found.append(os.readlink(f"{directory}/{name}"))
    return found


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
