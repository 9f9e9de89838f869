"""Place: a worker's line to its node's agent, and whether both mean the same run."""

from __future__ import annotations

import os

from elastic.checkpoint.locating import local_dir
from elastic.errors import UsageError
from elastic.link import AgentLink, Link, NoLink
from elastic.world import World


def connect(world: World) -> Link:
    """The line to the agent; where there is none of ours, one that leads nowhere. Raises Fenced when it is gone."""
    if world.agent_socket is None:
        return NoLink()
    return AgentLink(
        world.agent_socket,
        rank=world.rank,
        generation=world.generation,
        pid=os.getpid(),
        secret=world.agent_secret,
    )


def check_same_root(world: World, save_path: str) -> None:
    """Agent and worker must mean the same run: the agent's event file lies in its save path. Raises UsageError."""
    if world.events_path is None:
        return
    agents = os.path.realpath(os.path.dirname(os.path.dirname(world.events_path)))
    if agents != os.path.realpath(local_dir(save_path)):
        raise UsageError(
            f"the agent works for the save path {agents}, this worker for {save_path}; set it where "
            "both see it: --checkpoint.save_path after the script, or ELASTIC__CHECKPOINT__SAVE_PATH"
        )
