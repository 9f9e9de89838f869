"""Tenure: a launch's hold on its save path. The leading agent renews the mark there; who finds another's in it ends."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from elastic.checkpoint.launches import BEAT_S, UNREADABLE, Mark, await_turn, read_mark, write_mark
from elastic.checkpoint.locating import local_dir, storage_for
from elastic.checkpoint.root import claim, named_launch
from elastic.checkpoint.seams import refuse_locked
from elastic.checkpoint.storage import Storage
from elastic.clock import Clock
from elastic.config.choices import PathScope
from elastic.config.model import Settings
from elastic.errors import Fenced, StoreError, StoreUnavailable
from elastic.events import Emit, Notice
from elastic.rendezvous.coordinator import Coordinator
from elastic.rendezvous.model import MemberState

logger = logging.getLogger(__name__)

_END_S = 10.0
_LED_S = 1.0
"""How soon an agent that begins to lead gives its first sign of life."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One start of a run. `job_id` is the run's, under which it is known to etcd; `name` is this launch's, which
    --rdzv-id gave; `found`: the mark that was there when its turn came."""

    job_id: str
    name: str
    found: Mark | None
    shared: bool

    def tenure(
        self,
        root: str,
        *,
        coordinator: Coordinator,
        emit: Emit,
        wake: Callable[[], None],
        clock: Clock,
    ) -> Tenure | None:
        """What holds the save path for this launch; None where each node has one of its own."""
        if not self.shared:
            return None

        agent = coordinator.identity.agent

        def others() -> bool:
            if clock.monotonic_s() > coordinator.lease_valid_until_s:
                raise StoreUnavailable("etcd does not confirm this agent")  # and asking would take its time
            here = (MemberState.JOINING, MemberState.IDLE)
            return any(each.agent != agent and each.state in here for each in coordinator.members())

        return Tenure(
            root,
            launch=self.name,
            agent=agent,
            found=self.found,
            storage=storage_for(root),
            leads=lambda: coordinator.is_leader,
            others=others,
            emit=emit,
            wake=wake,
        )


def launch_in(settings: Settings, *, run_id: str, clock: Clock) -> Launch:
    """Whose run the save path is, once this launch of it may work there. A shared one may be launched under any id.

    Raises:
        UsageError: the save path cannot be used; RunMismatch among it: another launch is at work there.
        CheckpointError: it cannot be read now.
    """
    root = settings.checkpoint.save_path
    shared = settings.checkpoint.save_path_scope is not PathScope.PRIVATE
    identity = claim(root, job_id=run_id, any_launch=shared)
    name = named_launch(run_id, identity)
    found = None
    if shared:
        refuse_locked(local_dir(root))
        found = await_turn(root, launch=name, storage=storage_for(root), clock=clock, tell=logger.info)
    return Launch(job_id=identity.job_id, name=name, found=found, shared=shared)


class Tenure:
    """A thread that gives a sign of life while this agent leads, or was the last one that gave one."""

    def __init__(
        self,
        root: str,
        *,
        launch: str,
        agent: str,
        found: Mark | None,
        storage: Storage,
        leads: Callable[[], bool],
        others: Callable[[], bool],
        emit: Emit,
        wake: Callable[[], None],
    ) -> None:
        """`found`: the mark that was there when this launch's turn came. `others`: whether other agents of the job are
        at work, asked from the store (StoreError); `wake`: called when another launch has the save path."""
        self._root, self._launch, self._agent, self._found = root, launch, agent, found
        self._storage, self._leads, self._others, self._emit, self._wake = storage, leads, others, emit, wake
        self._beat = 0
        self._taken = ""
        self._silent = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="elastic-tenure", daemon=True)

    def start(self, stack: ExitStack) -> None:
        """Begin; `stack` ends it."""
        self._thread.start()
        stack.callback(self.stop)

    def stop(self) -> None:
        """Give no more signs of life; the last one to leave says that the launch is over."""
        self._stopping.set()
        self._thread.join(_END_S)  # no longer: a file system that hangs must not keep a node from leaving

    def _leave(self) -> None:
        with contextlib.suppress(OSError, StoreError):
            mark = read_mark(self._root, storage=self._storage)
            if mark is not None and mark.agent == self._agent and not self._others():
                write_mark(self._root, self._mark(over=True), storage=self._storage)

    def check(self) -> None:
        """Raises Fenced where another launch has the save path."""
        if self._taken:
            raise Fenced(self._taken)

    def lost(self) -> str:
        """Looks at the mark: why nothing of this launch may be published any more, or "". What cannot be read is no
        reason: etcd decides."""
        with contextlib.suppress(OSError):
            self._look(read_mark(self._root, storage=self._storage))
        return self._taken

    def beat(self) -> None:
        """One sign of life, if it is this agent's to give."""
        try:
            if not (self._leads() or self._beat):
                return
            mark = read_mark(self._root, storage=self._storage)
            self._look(mark)
            if self._taken or not (self._leads() or (mark is not None and mark.agent == self._agent)):
                return
            if mark is not None and mark.launch == UNREADABLE and self._beat:
                logger.warning("the mark of this launch in %s could not be read, and is written anew", self._root)
            elif mark is not None and mark.launch != self._launch:
                self._emit(Notice(text=f"launch {self._launch!r} goes on where {mark.launch!r} was"))
            self._beat += 1
            write_mark(self._root, self._mark(), storage=self._storage)
            self._silent = False
        except OSError as error:
            if not self._silent:
                logger.warning(
                    "the mark of this launch in %s cannot be renewed, and will be later: %s", self._root, error
                )
            self._silent = True

    def _look(self, mark: Mark | None) -> None:
        if mark is None or mark.launch in (self._launch, UNREADABLE) or mark == self._found or self._taken:
            return
        self._taken = (
            f"the run in {self._root} is in the hands of launch {mark.launch!r} by now; this is {self._launch!r}"
        )
        self._wake()

    def _mark(self, *, over: bool = False) -> Mark:
        return Mark(launch=self._launch, agent=self._agent, beat=self._beat, over=over)

    def _run(self) -> None:
        while True:
            self.beat()
            if self._taken:
                return
            if self._stopping.wait(BEAT_S if self._beat else _LED_S):
                break
        self._leave()
