"""The default job under autocast to bfloat16: for tests of exact numerics under torchrun."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import nn

from elastic.job import Job
from jobs import pretrain_lm
from jobs.gpt import loss_per_sample

if TYPE_CHECKING:
    from elastic.config.model import Settings


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return loss_per_sample(model, batch)


def job(settings: Settings) -> Job:
    return dataclasses.replace(pretrain_lm.job(settings), loss=loss)
