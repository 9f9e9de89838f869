"""A process that must not outlive the one that started it, and one that takes in the orphans of another. prctl(2)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator, Mapping

AGENT_PID = "ELASTIC_AGENT_PID"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread ends that started it, which is when its process does at latest.

    A parent that died before the call is not noticed.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def die_with_agent(environ: Mapping[str, str]) -> None:
    """Have the kernel kill this worker when its agent dies (Linux prctl(2)); nothing where there is no agent of ours.

    Call it early. An agent that died before the call is noticed. Where a wrapper stands between agent and worker, the
    end of the line to the agent does the same a step later.
    """
    agent = environ.get(AGENT_PID)
    if agent is None:
        return
    if os.getppid() == int(agent):
        die_with_parent()
        dead = os.getppid() != int(agent)
    else:
        dead = not _exists(int(agent))
    if dead:
        os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Meanwhile, descendants whose parent ends become this process' children; else they become the system's."""
    before = ctypes.c_int(0)
    _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.addressof(before))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, before.value)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
