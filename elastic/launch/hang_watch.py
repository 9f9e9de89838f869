"""Hang watch: an agent's eyes on its own workers. Saves the stacks of all before one of them is ended."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from elastic import stacks
from elastic.activity import SIZE_BYTES, ActivityPage, Seen
from elastic.clock import Clock
from elastic.events import Emit, WorkerHung
from elastic.launch.hang import Bounds, Hung, judge
from elastic.limited import limited

logger = logging.getLogger(__name__)

ASLEEP_S = 5.0
"""An agent that comes to look so much later than it wanted to was not running, as its workers probably were not."""
_WRITTEN_WITHIN_S = 2.0


@dataclass(frozen=True, kw_only=True)
class _Place:
    """What one worker shares with the agent."""

    page: ActivityPage
    stacks_fd: int
    paths: tuple[str, str]


class HangWatch:
    """One for each agent; used from its main thread."""

    def __init__(self, *, slots: int, bounds: Bounds, file: Path, emit: Emit, clock: Clock, stack: ExitStack) -> None:
        """`file`: stacks go to files beside it. What is opened is closed by `stack`."""
        self._bounds, self._file, self._emit, self._clock = bounds, file, emit, clock
        self._places = [_make(stack) for _ in range(slots)]
        self._awake_since_s = 0.0
        self._wanted_s = clock.monotonic_s()
        self._saved = 0
        self._told: set[int] = set()  # those on their way out

    @property
    def paths(self) -> str:
        """For the workers, as one variable: activity and stacks of each, in the order of local ranks."""
        return ",".join(f"{activity}:{stacks_}" for activity, stacks_ in (each.paths for each in self._places))

    def look(self, pids: Sequence[int]) -> tuple[dict[int, str], float]:
        """Which of these workers are newly found to hang, each with the reason, and when to look again.

        With 0 for `unknown_s` none does.
        """
        now_s = self._clock.monotonic_s()
        if now_s > self._wanted_s + ASLEEP_S:
            self._awake_since_s = now_s
        if not self._bounds.unknown_s:
            return {}, float("inf")
        self._told.intersection_update(pids)
        seen = [each for each in self._seen(pids) if each.pid not in self._told and not _is_traced(each.pid)]
        outlook = judge(seen, now_s=now_s, awake_since_s=self._awake_since_s, bounds=self._bounds)
        self._wanted_s = min(outlook.until_s, now_s + ASLEEP_S)
        if outlook.hung:
            self._tell(outlook.hung, pids)
        return {each.pid: each.reason for each in outlook.hung}, self._wanted_s

    def _seen(self, pids: Sequence[int]) -> list[Seen]:
        return [found for place in self._places if (found := place.page.seen()).pid in pids]

    def _tell(self, hung: Sequence[Hung], pids: Sequence[int]) -> None:
        file = self._save(pids)
        self._told.update(each.pid for each in hung)
        for each in hung:
            logger.warning("the worker with pid %d hangs: %s; stacks of all are in %s", each.pid, each.reason, file)
            doing = each.doing.name.lower()
            self._emit(WorkerHung(pid=each.pid, doing=doing, seconds=each.for_s, reason=each.reason, stacks=str(file)))

    def _save(self, pids: Sequence[int]) -> Path:
        self._saved += 1
        file = self._file.with_name(f"{self._file.stem}-stacks-{self._saved}.txt")
        parts = []
        for local_rank, place in enumerate(self._places):
            seen = place.page.seen()
            if seen.pid not in pids:
                continue
            for_s = self._clock.monotonic_s() - seen.since_s
            head = f"local rank {local_rank}, pid {seen.pid}: {seen.doing.name.lower()} for {for_s:.1f} s"
            parts.append(f"{head}\n{stacks.ask(seen.pid, fd=place.stacks_fd, clock=self._clock)}")
        try:
            # Who hangs may wait for the very same disk.
            limited(lambda: file.write_text("\n".join(parts)), limit_s=_WRITTEN_WITHIN_S, what=f"writing {file}")
        except OSError as error:
            logger.error("stacks could not be saved (%s):\n%s", error, "\n".join(parts))
        return file


def _make(stack: ExitStack) -> _Place:
    fds = [os.memfd_create(f"elastic-{what}", os.MFD_CLOEXEC) for what in ("activity", "stacks")]
    for fd in fds:
        stack.callback(os.close, fd)
    os.ftruncate(fds[0], SIZE_BYTES)
    page = ActivityPage(fds[0])
    stack.callback(page.close)
    paths = (f"/proc/{os.getpid()}/fd/{fds[0]}", f"/proc/{os.getpid()}/fd/{fds[1]}")
    return _Place(page=page, stacks_fd=fds[1], paths=paths)


def _is_traced(pid: int) -> bool:
    """Whether somebody looks at it with a debugger, and takes the time for it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return any(line.startswith("TracerPid:") and line.split()[1] != "0" for line in lines)
