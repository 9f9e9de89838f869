"""Tenure: a launch's hold on its save path. The leading agent renews the mark there; who finds another's in it ends."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from elastic.checkpoint.launches import BEAT_S, SILENT_S, UNREADABLE, Mark, await_turn, read_mark, write_mark
from elastic.checkpoint.locating import local_dir, storage_for
from elastic.checkpoint.root import claim, named_launch
from elastic.checkpoint.seams import refuse_locked
from elastic.checkpoint.storage import Storage
from elastic.clock import Clock
from elastic.config.choices import PathScope
from elastic.config.model import Settings
from elastic.errors import Fenced, RunMismatch, StoreError, StoreUnavailable
from elastic.events import Emit, Notice
from elastic.limited import limited
from elastic.rendezvous.coordinator import Coordinator
from elastic.rendezvous.model import MemberState

logger = logging.getLogger(__name__)

_END_S = 10.0
_ANSWER_S = 2.0
"""How long a disk may take when a worker waits for it."""
_POLL_S = 0.2
_SIGNS = 2
"""Signs of life after which another etcd is believed: one that lost its data soon knows of its run again."""
_STRANGE = 3
"""Signs of life of a stranger in a row until it is believed: one may have been on its way."""
_LED_S = 1.0
"""How soon an agent that begins to lead gives its first sign of life."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One start of a run. `job_id` is the run's, under which it is known to etcd; `name` is this launch's, which
    --rdzv-id gave; `found`: the mark that was there when its turn came."""

    job_id: str
    name: str
    root: str
    found: Mark | None
    shared: bool

    @property
    def doubtful(self) -> bool:
        """Whether agents of this name may be at work there, with an etcd that this one does not know."""
        found = self.found
        return self.shared and found is not None and not found.over and found.launch == self.name

    def await_silence(self, *, coordinator: Coordinator, check: Callable[[], None], clock: Clock) -> None:
        """Where that is in doubt, and etcd does not know of the run: until they give no sign of life.

        `check` is called again and again, and may raise.

        Raises:
            RunMismatch: they do.
            StoreError: etcd cannot be asked.
        """

        def known() -> bool:
            if coordinator.world() is not None or coordinator.commit_record() is not None:
                return True
            return seen is not None and any(each.agent == seen.agent for each in coordinator.members())

        seen, signs, since_s = self.found, 0, clock.monotonic_s()
        if not self.doubtful or known():
            return
        logger.info(
            "%s was trained into under this name, of which this etcd does not know: waiting for a sign", self.root
        )
        while not known() and clock.monotonic_s() < since_s + SILENT_S:
            check()
            clock.sleep(_POLL_S)
            with contextlib.suppress(OSError):
                mark = read_mark(self.root, storage=storage_for(self.root))
                if mark is None or mark.over:
                    return
                if mark != seen:
                    seen, signs, since_s = mark, signs + 1, clock.monotonic_s()
            if signs >= _SIGNS and not known():
                raise RunMismatch(_double(self.name, self.root, seen))

    def tenure(
        self,
        *,
        coordinator: Coordinator,
        emit: Emit,
        wake: Callable[[], None],
        clock: Clock,
    ) -> Tenure | None:
        """What holds the save path for this launch; None where each node has one of its own."""
        if not self.shared:
            return None

        def confirmed() -> bool:
            return clock.monotonic_s() <= coordinator.lease_valid_until_s

        def members() -> dict[str, MemberState]:
            if not confirmed():
                raise StoreUnavailable("etcd does not confirm this agent")  # and asking would take its time
            return {each.agent: each.state for each in coordinator.members()}

        return Tenure(
            self.root,
            launch=self.name,
            agent=coordinator.identity.agent,
            found=self.found,
            storage=storage_for(self.root),
            leads=lambda: coordinator.is_leader and confirmed(),
            members=members,
            seated=lambda: [seat.agent for seat in world.seats] if (world := coordinator.world()) else [],
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
    return Launch(job_id=identity.job_id, name=name, root=root, found=found, shared=shared)


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
        members: Callable[[], Mapping[str, MemberState]],
        seated: Callable[[], Collection[str]],
        emit: Emit,
        wake: Callable[[], None],
    ) -> None:
        """`found`: the mark that was there when this launch's turn came. `members`: the agents of the job, asked from
        the store (StoreError); `seated`: those of the present world, whose keys need not be there any more; `wake`:
        called when somebody else has the save path."""
        self._root, self._launch, self._agent, self._found = root, launch, agent, found
        self._storage, self._leads, self._emit, self._wake = storage, leads, emit, wake
        self._members, self._seated = members, seated
        self._beat = 0
        self._strange = 0
        self._taken: Fenced | RunMismatch | None = None
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
            mark = self._read()
            if mark is not None and mark.agent == self._agent and not self._others_work():
                write_mark(self._root, self._mark(over=True), storage=self._storage)

    def check(self) -> None:
        """Raises Fenced where another launch has the save path, RunMismatch where another job of this name has."""
        if self._taken is not None:
            raise self._taken

    def lost(self) -> str:
        """Looks at the mark: why nothing of this launch may be published any more, or "". What cannot be read is no
        reason: etcd decides.

        Raises:
            StoreUnavailable: the disk stalls, and may do so until others have taken over.
        """
        with contextlib.suppress(OSError):
            try:
                self._look(limited(self._read, limit_s=_ANSWER_S, what=f"reading {self._root}"))
            except TimeoutError as error:
                raise StoreUnavailable(f"{error} Nothing can be committed meanwhile") from error
        return "" if self._taken is None else str(self._taken)

    def _read(self) -> Mark | None:
        return read_mark(self._root, storage=self._storage)

    def beat(self) -> None:
        """One sign of life, if it is this agent's to give."""
        try:
            if not (self._leads() or self._beat):
                return
            mark = self._read()
            self._look(mark)
            self._meet(mark)
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
        self._taken = Fenced(
            f"the run in {self._root} is in the hands of launch {mark.launch!r} by now; this is {self._launch!r}"
        )
        self._wake()

    def _meet(self, mark: Mark | None) -> None:
        """Two jobs of one name, each with an etcd of its own, know nothing of each other but this mark, which both
        renew: so each finds the other's there again and again. Who gave fewer signs of life goes."""
        strange = mark is not None and self._beat > 0 and self._leads() and mark.launch == self._launch
        if mark is None or not strange or mark.agent == self._agent or self._is_member(mark.agent):
            self._strange = 0
            return
        self._strange += 1
        if self._strange < _STRANGE or (mark.beat, mark.agent) < (self._beat, self._agent):
            return
        self._taken = RunMismatch(_double(self._launch, self._root, mark))
        self._wake()

    def _is_member(self, agent: str) -> bool:
        """Also where that cannot be asked."""
        try:
            return agent in self._seated() or agent in self._members()
        except StoreError:
            return True

    def _others_work(self) -> bool:
        """Raises StoreError."""
        here = (MemberState.JOINING, MemberState.IDLE)
        return any(agent != self._agent and state in here for agent, state in self._members().items())

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


def _double(launch: str, root: str, mark: Mark | None) -> str:
    agent = mark.agent if mark is not None else "?"
    return (
        f"another job {launch!r} trains into {root}: agent {agent} gives signs of life there and is not a member of "
        "this job, so it has another etcd. Name the same endpoints on all nodes, or give each job a save path and an "
        "id of its own"
    )
