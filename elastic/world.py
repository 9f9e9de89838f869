"""World: who this worker is and whom it trains with, read from the environment once.

torchrun sets RANK and its kin; our agent adds the ELASTIC_* names below. Without either, a world of one.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

GENERATION = "ELASTIC_GENERATION"
JOB_ID = "ELASTIC_JOB_ID"
NODE = "ELASTIC_NODE"
AGENT_SOCKET = "ELASTIC_AGENT_SOCKET"
EVENTS_PATH = "ELASTIC_EVENTS_PATH"
LEASE_PAGE = "ELASTIC_LEASE_PAGE"
ARENAS = "ELASTIC_ARENAS"
WATCH = "ELASTIC_WATCH"
AGENT_SECRET = "ELASTIC_AGENT_SECRET"
GENERATION_SECRET = "ELASTIC_GENERATION_SECRET"
GOES_BACK = "ELASTIC_GOES_BACK"
"""Set to 1 where nobody came who holds what was committed last."""
PLACE_TO_COME = "ELASTIC_PLACE_TO_COME"
"""Set to 1 for a worker that builds its job before there is a place for it."""
ARENAS_EACH = 4
"""For each worker: two of its own, and two for copies of another node's."""


@dataclass(frozen=True, kw_only=True)
class World:
    """One worker's place in one generation."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    generation: int = 0
    """The agreed membership's number, the fencing token. Without our agent: torchelastic's restart count."""
    node: str = "localhost"
    job_id: str = "none"
    agent_socket: str | None = None
    """Unix socket of the agent, where there is one of ours."""
    agent_secret: str = field(default="", repr=False)
    """By which that agent knows its workers."""
    secret: str = field(default="", repr=False)
    """By which the workers of this generation know each other; "": they do not."""
    goes_back: bool = False
    """Whether to go back to older state where what was committed last is not here: others were waited for in vain."""
    lease_page: str | None = None
    """File that says how long this node's lease holds, where there is an agent of ours."""
    events_path: str | None = None
    """File that this node's events are appended to."""
    arenas: tuple[str, ...] = ()
    """Memory that the agent keeps for its workers, ARENAS_EACH pieces for each in the order of local ranks."""
    watch: tuple[str, ...] = ()
    """Files that the agent watches its workers by, `activity:stacks` for each in the order of local ranks."""
    device: str = "cpu"
    """Where this worker computes: "cpu" or "cuda:N". Chosen by elastic.distributed, never by the job."""
    distributed: bool = False
    """Whether torchrun started this worker, so that a process group is to be joined."""
    placed: bool = True
    """Whether there is a place yet. Until then rank, size and generation mean nothing."""

    @property
    def watched_by(self) -> tuple[str, str] | None:
        """The paths of this worker's activity and stacks, where an agent of ours watches it."""
        if self.local_rank >= len(self.watch):
            return None
        activity, _, stacks = self.watch[self.local_rank].partition(":")
        return activity, stacks

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> World:
        """Read the place from the environment; a world of one where torchrun set nothing."""
        node = environ.get(NODE) or socket.gethostname()
        placed = not environ.get(PLACE_TO_COME)
        if placed and ("RANK" not in environ or "WORLD_SIZE" not in environ):
            return cls(node=node)
        return cls(
            rank=int(environ["RANK"]) if placed else -1,
            size=int(environ["WORLD_SIZE"]) if placed else 1,
            local_rank=int(environ.get("LOCAL_RANK", "0")),
            local_size=int(environ.get("LOCAL_WORLD_SIZE", "1")),
            generation=int(environ.get(GENERATION) or environ.get("TORCHELASTIC_RESTART_COUNT", "0")) if placed else 0,
            node=node,
            job_id=environ.get(JOB_ID) or environ.get("TORCHELASTIC_RUN_ID", "none"),
            agent_socket=environ.get(AGENT_SOCKET),
            agent_secret=environ.get(AGENT_SECRET, ""),
            secret=environ.get(GENERATION_SECRET, ""),
            goes_back=environ.get(GOES_BACK) == "1",
            lease_page=environ.get(LEASE_PAGE),
            events_path=environ.get(EVENTS_PATH),
            arenas=tuple(each for each in environ.get(ARENAS, "").split(",") if each),
            watch=tuple(each for each in environ.get(WATCH, "").split(",") if each),
            distributed=True,
            placed=placed,
        )
