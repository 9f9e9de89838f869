"""Weights & Biases: one run, resumed under the same id; its own step is the number of samples.

The service takes only growing steps. Where it is known how far it came (online), what is done again is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import wandb

from elastic.tracking.tracker import TrackedRun


def open_run(run: TrackedRun) -> WandbRun:
    """Where it goes, and with which key, is said by wandb's own variables (WANDB_MODE, WANDB_API_KEY, …)."""
    opened = wandb.init(
        project=run.project,
        id=run.name,
        resume="allow",
        dir=run.directory,
        config=dict(run.settings),
        settings=wandb.Settings(console="off", silent=True),
    )
    return WandbRun(opened)


class WandbRun:
    """A run of theirs."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def begin(self, samples: int) -> int:
        """Nothing can be taken back; how far it came is theirs to say."""
        return max(samples, int(self._run.step) - 1)

    def log(self, values: Mapping[str, float], *, samples: int) -> None:
        """One row of its history."""
        self._run.log(dict(values), step=samples)

    def close(self) -> None:
        """Upload what is left, and mark it as ended; a later start resumes it."""
        self._run.finish()
        wandb.teardown()  # the process that their library has started for this one
