"""A worker without torch: it counts steps, tells its agent, and ends as asked. For worlds of many agents.

Its options come from the environment: ODDS, of failing in one of its steps, and FINISH, a file whose being there ends
the job. A generation's steps follow those of the ones before, so that failures are never without progress.
"""

from __future__ import annotations

import os
import random
import select
import sys
from pathlib import Path

from elastic.clock import SYSTEM_CLOCK
from elastic.errors import ExitCode
from elastic.events import EventFile, Record, StepCommitted, encode
from elastic.lifetime import die_with_agent
from elastic.link import AgentLink
from elastic.world import World

STEP_S = 0.2


def main() -> int:
    die_with_agent(os.environ)
    world = World.from_environ(os.environ)
    link = AgentLink(
        world.agent_socket, rank=world.rank, generation=world.generation, pid=os.getpid(), secret=world.agent_secret
    )
    odds, finish = float(os.environ["ODDS"]), Path(os.environ["FINISH"])
    events = EventFile(Path(world.events_path))
    iteration = 1000 * world.generation
    while True:
        select.select([], [], [], STEP_S)  # a step's work
        if finish.exists():
            return ExitCode.DONE
        if link.regroup_wanted():
            return ExitCode.REGROUP
        if random.random() < odds:
            return 3
        iteration += 1
        record = Record(
            time_s=SYSTEM_CLOCK.wall_s(),
            node=world.node,
            rank=world.rank,
            generation=world.generation,
            event=a_step(iteration, world_size=world.size),
        )
        link.send_event(encode(record))
        if world.rank == 0:
            events.append(record)


def a_step(iteration: int, *, world_size: int) -> StepCommitted:
    return StepCommitted(
        iteration=iteration,
        start=iteration,
        stop=iteration + 1,
        ranges=(),
        step_samples=1,
        step_digest=0,
        run_digest=0,
        loss=0.0,
        world_size=world_size,
        seconds=STEP_S,
    )


if __name__ == "__main__":
    sys.exit(main())
