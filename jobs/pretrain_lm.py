"""The default job: train a small GPT on text, byte by byte. Run it as it is, or copy it and change a function."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from elastic.job import Job
from elastic.plan.progress import warmup_cosine
from jobs.corpus import TextDataset, read_corpus
from jobs.gpt import GPT, GPTConfig, adamw, loss_per_sample

if TYPE_CHECKING:
    from elastic.config.model import Settings
    from elastic.world import World

LEAST_LEARNING_RATE = 0.1
"""What the learning rate falls to by the end, as a share of its highest."""


def job(settings: Settings) -> Job:
    """The job that the settings describe."""
    training, sizes, rates = settings.training, settings.model, settings.optimizer

    def build_model(world: World) -> nn.Module:
        torch.manual_seed(training.seed)  # the same first weights on every rank
        config = GPTConfig(
            layers=sizes.layers,
            width=sizes.width,
            heads=sizes.heads,
            context=sizes.context,
            dropout=sizes.dropout,
        )
        return GPT(config).to(world.device)

    def build_dataset() -> TextDataset:
        return TextDataset(read_corpus(settings.data.path), context=sizes.context)

    def build_optimizer(model: nn.Module) -> torch.optim.Optimizer:
        return adamw(model, learning_rate=rates.learning_rate, weight_decay=rates.weight_decay)

    def schedule(consumed_samples: int) -> float:
        return warmup_cosine(
            consumed_samples,
            warmup_samples=rates.warmup_samples,
            total_samples=training.steps * training.global_batch_size,
            floor=LEAST_LEARNING_RATE,
        )

    return Job(
        model=build_model,
        dataset=build_dataset,
        loss=loss_per_sample,
        optimizer=build_optimizer,
        schedule=schedule,
        max_grad_norm=rates.max_grad_norm or None,  # the settings say 0 for never
    )
