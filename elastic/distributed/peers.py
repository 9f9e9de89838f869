"""Telling a lost peer from a mistake: which errors of a collective mean that somebody went away."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from elastic.errors import PeerLost

# What gloo, TCPStore and NCCL say when the other end is gone, as seen with torch 2.13. A shape mismatch or an
# out-of-memory must stay what it is: calling it a lost peer would restart the job for ever.
_GONE = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)"
    r"|broken pipe|socket (closed|error|timeout)|connect timeout|wait timeout|timed out"
    r"|failed to (recv|send|connect)|recvvalue failed|end of file"
    r"|remote process|nccl (remote|communicator was aborted)|ncclremoteerror|ncclsystemerror",
    re.IGNORECASE,
)


def is_peer_lost(error: BaseException) -> bool:
    """Whether an error raised by a collective says that a peer or the store is gone."""
    return isinstance(error, RuntimeError) and _GONE.search(str(error)) is not None


@contextmanager
def peer_errors(doing: str, *, broken: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Turn the backend's words for a vanished peer into PeerLost; leave other errors as they are.

    `broken`: whether the group is known to be over, so that every error of it says so.
    """
    try:
        yield
    except RuntimeError as error:
        if broken() or is_peer_lost(error):
            raise PeerLost(f"a peer went away while {doing}: {str(error).splitlines()[0]}") from error
        raise
