"""A process that must not outlive the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Mapping

AGENT_PID = "ELASTIC_AGENT_PID"

_PR_SET_PDEATHSIG = 1


def die_with_agent(environ: Mapping[str, str]) -> None:
    """Have the kernel kill this worker when its agent dies (Linux prctl(2)); nothing where there is no agent of ours.

    Call it early. An agent that died before the call is noticed. Where a wrapper stands between agent and worker, the
    end of the line to the agent does the same a step later.
    """
    agent = environ.get(AGENT_PID)
    if agent is None:
        return
    if os.getppid() == int(agent):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        dead = os.getppid() != int(agent)
    else:
        dead = not _exists(int(agent))
    if dead:
        os.kill(os.getpid(), signal.SIGKILL)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
