"""The small job with a model that takes its time to be built, which is written down: who built when, in which process.

TESTS_BUILD_S says how long, TESTS_BUILT names the file.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from elastic.job import Job
from tests.harness import small_job

if TYPE_CHECKING:
    from elastic.config.model import Settings
    from elastic.world import World


def build_model(world: World) -> nn.Module:
    threading.Event().wait(float(os.environ.get("TESTS_BUILD_S", "0")))
    built = {"node": world.node, "pid": os.getpid(), "at_s": time.time()}
    with Path(os.environ["TESTS_BUILT"]).open("a") as file:
        file.write(json.dumps(built) + "\n")
    return small_job.build_model(world)


def builds(path: Path) -> list[dict[str, Any]]:
    """What was built, in order."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def job(settings: Settings) -> Job:
    return dataclasses.replace(small_job.job(settings), model=build_model)


def asks_rank(settings: Settings) -> Job:
    """Its model is built by rank."""

    def model(world: World) -> nn.Module:
        assert world.rank >= 0
        return build_model(world)

    return dataclasses.replace(small_job.job(settings), model=model)


def reads_rank(settings: Settings) -> Job:
    """The same, from the environment."""

    def model(world: World) -> nn.Module:
        assert int(os.environ["RANK"]) >= 0
        return build_model(world)

    return dataclasses.replace(small_job.job(settings), model=model)
