"""A node's worker processes: wait for one to end or for a wake-up, let them end, kill the rest. Never by polling."""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from elastic.clock import Clock


class WakePipe:
    """Wakes a waiting main thread from any other thread."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def wake(self) -> None:
        """End the present or the next wait. Safe from any thread and in a signal handler; nothing once closed."""
        if self._write < 0:
            return
        try:
            os.write(self._write, b"x")
        except BlockingIOError:
            return  # full: whoever waits will wake

    def drain(self) -> None:
        """Forget wake-ups that were seen."""
        try:
            while os.read(self.fd, 4096):
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        """Close both ends."""
        write, self._write = self._write, -1
        os.close(write)
        os.close(self.fd)


class Process(Protocol):
    """A child: subprocess.Popen, or a worker that the zygote forked."""

    @property
    def pid(self) -> int:
        """Its id; its own until it was waited for."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, negative for a signal."""
        ...


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A worker's end, in the order in which it was noticed."""

    local_rank: int
    pid: int
    exit_code: int
    order: int


class WorkerProcesses:
    """The workers of one generation on this node. `ended` grows as they end; `killed` holds pids that we killed."""

    def __init__(self, processes: Mapping[int, Process], *, wake: WakePipe, clock: Clock) -> None:
        self.ended: dict[int, Ended] = {}
        self.killed: set[int] = set()
        self._processes = dict(processes)
        self._wake = wake
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._selector.register(wake.fd, selectors.EVENT_READ, None)
        self._pidfds: dict[int, int] = {}
        self._groups: list[int] = []
        for local_rank, process in self._processes.items():
            self._pidfds[local_rank] = os.pidfd_open(process.pid)
            self._selector.register(self._pidfds[local_rank], selectors.EVENT_READ, local_rank)

    @property
    def running(self) -> bool:
        """Whether some worker has not ended."""
        return len(self.ended) < len(self._processes)

    @property
    def pids(self) -> list[int]:
        """Those that have not ended."""
        return [process.pid for local_rank, process in self._processes.items() if local_rank not in self.ended]

    @property
    def failed(self) -> bool:
        """Whether some worker ended with anything but 0."""
        return any(end.exit_code != 0 for end in self.ended.values())

    @property
    def left(self) -> dict[int, Process]:
        """By local rank: those that have not ended."""
        return {rank: process for rank, process in self._processes.items() if rank not in self.ended}

    def wait(self, *, limit_s: float | None = None) -> bool:
        """Wait until a worker ends or somebody wakes us; False when the limit ran out first."""
        ready = self._selector.select(limit_s)
        for key, _ in ready:
            if key.data is None:
                self._wake.drain()
            else:
                self._reap(key.data)
        return bool(ready)

    def let_end(
        self, *, limit_s: float, hurry: Callable[[], bool] = lambda: False,
        staying: Callable[[], Collection[int]] = tuple,
    ) -> None:  # fmt: skip
        """Give the workers so long to end by themselves, then kill those left and wait for them.

        Args:
            hurry: asked after each wake-up; True cuts the time short.
            staying: pids of those that need not end; asked likewise.
        """
        until_s = self._clock.monotonic_s() + limit_s
        while set(self.pids) - set(staying()) and not hurry() and (left_s := until_s - self._clock.monotonic_s()) > 0:
            self.wait(limit_s=left_s)
        self.kill(but=staying())

    def kill(self, *, but: Collection[int] = ()) -> None:
        """SIGKILL what still runs, with its process group (a worker's data loaders), and wait for its end."""
        doomed = [pid for pid in self.pids if pid not in but]
        for pid in doomed:
            self.killed.add(pid)
            kill_group(pid)
        while not set(doomed).isdisjoint(self.pids):
            self.wait()

    def close(self) -> None:
        """Close what was opened to watch, and bury what else of the workers' is dead."""
        for group in self._groups:
            _reap_orphans(group)
        self._selector.close()
        for fd in self._pidfds.values():
            os.close(fd)

    def _reap(self, local_rank: int) -> None:
        process = self._processes[local_rank]
        self._selector.unregister(self._pidfds[local_rank])
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        if ended is None or ended.si_status != 0:
            # What a broken worker had forked must not outlive it. Before it is reaped: until then its id is its own.
            kill_group(process.pid)
        exit_code = process.wait()
        self._groups.append(process.pid)
        if exit_code != -signal.SIGKILL:
            self.killed.discard(process.pid)  # it was quicker: its end is its own
        self.ended[local_rank] = Ended(
            local_rank=local_rank, pid=process.pid, exit_code=exit_code, order=len(self.ended)
        )


def kill_group(pid: int) -> None:
    """torch starts each worker as the leader of a session, so that its group is its own and its children's."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # nobody is left in it


def _reap_orphans(group: int) -> None:
    """Those of a worker's processes that became our children when it ended: where we adopt, or are process 1."""
    try:
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return  # none are left
