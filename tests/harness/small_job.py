"""A job that is quick to start and to step, with a loss that tells any difference: for tests of survival."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from elastic.job import Job

if TYPE_CHECKING:
    from elastic.config.model import Settings
    from elastic.world import World

FEATURES, WIDTH, CLASSES, SAMPLES = 64, 256, 8, 5003


def build_model(world: World) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(FEATURES, WIDTH), nn.GELU()]
    for _ in range(6):
        layers += [nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.1)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))


def build_dataset() -> Dataset[Any]:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, FEATURES, generator=draw)
    return TensorDataset(x, (x[:, :CLASSES] + 0.3 * torch.randn(SAMPLES, CLASSES, generator=draw)).argmax(1))


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    x, label = batch
    return functional.cross_entropy(model(x), label, reduction="none")


def job(settings: Settings) -> Job:
    return Job(
        model=build_model,
        dataset=build_dataset,
        loss=loss,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3),
        max_grad_norm=1.0,
    )


def always_fails(settings: Settings) -> Job:
    """Raises the same exception before the first step, in every worker."""

    def broken(model: nn.Module, batch: Any) -> torch.Tensor:
        raise ZeroDivisionError("this job is broken on purpose")

    return Job(
        model=build_model, dataset=build_dataset, loss=broken, optimizer=lambda m: torch.optim.SGD(m.parameters())
    )


def fails_at_step_8(settings: Settings) -> Job:
    """Raises in its eighth step, always: the run makes progress, and then none."""

    def schedule(consumed_samples: int) -> float:
        if consumed_samples >= 8 * settings.training.global_batch_size:
            raise ZeroDivisionError("step 8 is broken on purpose")
        return 1.0

    return Job(
        model=build_model,
        dataset=build_dataset,
        loss=loss,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        schedule=schedule,
    )


def stuck(settings: Settings) -> Job:
    """Ignores SIGTERM and, after a few steps, everything else: its worker ends only by force."""
    left = [20]

    def never(model: nn.Module, batch: Any) -> torch.Tensor:
        left[0] -= 1
        if left[0] < 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            threading.Event().wait()
        return loss(model, batch)

    return Job(
        model=build_model, dataset=build_dataset, loss=never, optimizer=lambda m: torch.optim.SGD(m.parameters())
    )


def waits_once(settings: Settings) -> Job:
    """The small job; in a process that finds the file named by TESTS_WAIT, and takes it away, a step never ends."""
    path = Path(os.environ.get("TESTS_WAIT", "/nonexistent"))

    def waiting(model: nn.Module, batch: Any) -> torch.Tensor:
        if path.exists():
            path.unlink()
            threading.Event().wait()
        return loss(model, batch)

    return dataclasses.replace(job(settings), loss=waiting)


def slow(settings: Settings) -> Job:
    """Each micro-batch takes a second: a step takes longer than many a scheduler waits."""

    def patient(model: nn.Module, batch: Any) -> torch.Tensor:
        threading.Event().wait(1.0)
        return loss(model, batch)

    return Job(
        model=build_model, dataset=build_dataset, loss=patient, optimizer=lambda m: torch.optim.SGD(m.parameters())
    )


def lags(settings: Settings) -> Job:
    """Each micro-batch takes longer while the file TESTS_LAG-NODE is there."""
    path = Path(f"{os.environ['TESTS_LAG']}-{os.environ['ELASTIC_NODE']}")

    def lagging(model: nn.Module, batch: Any) -> torch.Tensor:
        if path.exists():
            threading.Event().wait(0.1)
        return loss(model, batch)

    return dataclasses.replace(job(settings), loss=lagging)
