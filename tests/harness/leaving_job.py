"""The small job with long moments, each of which says when it has begun: a file named by MOMENT_FILE appears."""

from __future__ import annotations

import dataclasses
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from elastic.job import Evaluation, Job
from tests.harness import small_job

if TYPE_CHECKING:
    from elastic.config.model import Settings

HOW_LONG_S = 1.0


def begun() -> None:
    """Say that the moment is here, once, and stay in it for a while."""
    place = Path(os.environ["MOMENT_FILE"])
    if not place.exists():
        place.touch()
        threading.Event().wait(HOW_LONG_S)


def evaluating(settings: Settings) -> Job:
    """Evaluates after every few steps; each first time takes long."""

    def measure(model: nn.Module, batch: Any) -> dict[str, tuple[torch.Tensor, float]]:
        begun()
        return {"loss": (small_job.loss(model, batch).sum(), float(len(batch[1])))}

    every = 10 * settings.training.global_batch_size
    evaluation = Evaluation(dataset=small_job.build_dataset, measure=measure, every_samples=every)
    return dataclasses.replace(small_job.job(settings), evaluation=evaluation)


def slow_first_step(settings: Settings) -> Job:
    """The first step takes long, as where it is compiled."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        begun()
        return small_job.loss(model, batch)

    return dataclasses.replace(small_job.job(settings), loss=loss)


SLOW_SAVE_S = 40.0
"""Longer than the 30 s after which torchrun's own agent kills workers, whatever it was told."""


class SlowToSave(torch.optim.AdamW):
    """Its state takes long to get, once the file named by MOMENT_FILE is there."""

    def state_dict(self) -> dict[str, Any]:
        if Path(os.environ["MOMENT_FILE"]).exists():
            threading.Event().wait(SLOW_SAVE_S)
        return super().state_dict()


def slow_save(settings: Settings) -> Job:
    """A save takes long from some moment on."""
    return dataclasses.replace(small_job.job(settings), optimizer=lambda model: SlowToSave(model.parameters(), lr=1e-3))
