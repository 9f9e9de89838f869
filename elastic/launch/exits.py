"""What the ends of a node's workers mean: finished, regroup, a lost peer, or a failure with a root cause. Pure."""

from __future__ import annotations

import enum
import errno
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from elastic.errors import ExitCode, Lack
from elastic.events import Cause
from elastic.link import Failure, Stays
from elastic.rendezvous.model import FailureReport


@dataclass(frozen=True, kw_only=True)
class WorkerExit:
    """One worker's end. `order` counts exits as they were noticed; `told` is what it said before."""

    rank: int
    pid: int
    exit_code: int
    """Negative: ended by that signal, as subprocess says it."""
    order: int
    told: Failure | None = None
    stays: bool = False
    """It has not ended, but left its generation and waits for the next."""
    hung: str = ""
    """Why its agent thought that it hung, and ended it."""

    @property
    def meant(self) -> int:
        """The exit code that the worker announced, else the real one. Taking down a broken process group may crash
        a worker after its last word; what it said is why it ended. One that said that it has finished may still fail
        in what its program does afterwards, but a crash of torch's on the way out is none of it."""
        if self.told is None or (self.told.exit_code == ExitCode.DONE and self.exit_code >= 0):
            return self.exit_code
        return self.told.exit_code


class Ending(enum.Enum):
    """How a node's part of a generation ended."""

    FINISHED = "finished"
    REGROUP = "regroup"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The ending, why, and what to report to the others (None: nothing that they must weigh)."""

    ending: Ending
    reason: str
    report: FailureReport | None = None
    root: WorkerExit | None = None


_BLAMELESS = {ExitCode.DONE, ExitCode.PEER_LOST, ExitCode.REGROUP, ExitCode.PREEMPTED}

_NODE_ERRORS = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EDQUOT)


def judge(exits: Sequence[WorkerExit], *, step: int, committed_steps: int, killed: frozenset[int]) -> Verdict:
    """Weigh the ends of all workers of a node.

    Args:
        exits: one for each local worker.
        step: the last step that this node saw committed.
        committed_steps: how many steps this node saw committed since its agent started.
        killed: pids that the agent itself killed; their signal says nothing.
    """
    own = [end for end in exits if end.pid not in killed]
    if own and all(end.meant == ExitCode.DONE for end in exits):
        return Verdict(ending=Ending.FINISHED, reason="all workers of this node finished")
    guilty = sorted((end for end in own if end.meant not in _BLAMELESS), key=lambda end: end.order)
    if guilty:
        root = guilty[0]
        report = _report(root, step=step, committed_steps=committed_steps)
        return Verdict(ending=Ending.FAILED, reason=describe(root), report=report, root=root)
    lost = next((end for end in own if end.meant == ExitCode.PEER_LOST), None)
    if lost is not None:
        report = _report(lost, step=step, committed_steps=committed_steps)
        return Verdict(ending=Ending.FAILED, reason=describe(lost), report=report, root=lost)
    return Verdict(ending=Ending.REGROUP, reason="the workers saved and ended for a regroup")


def staying_as(stays: Stays, *, rank: int, pid: int, order: int) -> WorkerExit:
    """A worker that stays, beside those that ended: it lost a peer, or regroups."""
    code = ExitCode.PEER_LOST if stays.lost else ExitCode.REGROUP
    told = Failure(exit_code=code, step=stays.step, signature="", text=stays.text)
    return WorkerExit(rank=rank, pid=pid, exit_code=code, order=order, told=told, stays=True)


def cause_of(end: WorkerExit) -> Cause:
    """The event vocabulary's word for an exit."""
    if end.hung:
        return Cause.WORKER_HUNG
    if end.meant == ExitCode.PEER_LOST:
        return Cause.PEER_LOST
    return Cause.WORKER_SIGNAL if end.meant < 0 else Cause.WORKER_EXIT


def fault_of(exits: Sequence[WorkerExit]) -> Cause:
    """What a generation broke on, from those that have ended: the first that is to blame, else a lost peer.

    Where all have ended in order though the agent did not ask for it, a worker was signalled, and told the others."""
    guilty = sorted((end for end in exits if end.meant not in _BLAMELESS), key=lambda end: end.order)
    if guilty:
        return cause_of(guilty[0])
    meant = {end.meant for end in exits}
    in_order = meant & {ExitCode.REGROUP, ExitCode.PREEMPTED} and ExitCode.PEER_LOST not in meant
    return Cause.WORKER_SIGNAL if in_order else Cause.PEER_LOST


def describe(end: WorkerExit) -> str:
    """An exit in words."""
    if end.hung:
        return f"worker {end.rank} (pid {end.pid}) hung: {end.hung}"
    if end.meant < 0:
        return f"worker {end.rank} (pid {end.pid}) was killed by {_signal_name(-end.meant)}"
    if end.meant == ExitCode.PEER_LOST:
        return f"worker {end.rank} lost a peer"
    last_line = end.told.text.strip().splitlines()[-1] if end.told and end.told.text.strip() else ""
    return f"worker {end.rank} (pid {end.pid}) ended with exit code {end.meant}" + (
        f": {last_line}" if last_line else ""
    )


def _report(end: WorkerExit, *, step: int, committed_steps: int) -> FailureReport:
    told = end.told
    return FailureReport(
        cause=cause_of(end),
        rank=end.rank,
        step=max(step, told.step if told else 0),
        signature="hang" if end.hung else told.signature if told else f"exit {end.exit_code}",
        text=told.text if told else describe(end),
        exit_code=end.meant,
        committed_steps=committed_steps,
        node_local=told is not None and (told.node_local or _blames_the_node(told.text)),
        lacks=told.lacks if told else Lack.NOTHING,
    )


def _blames_the_node(text: str) -> bool:
    """Whether a traceback ends with a disk that is full, broken or read-only: another node may do better."""
    last_line = text.strip().rpartition("\n")[2]
    return any(f"[Errno {number}]" in last_line for number in _NODE_ERRORS)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
