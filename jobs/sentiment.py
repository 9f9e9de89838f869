"""A custom job in one screen: tell the mood of a review from its word counts. Copy this file to write your own."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from elastic import Job, World

WORDS, MOODS = 64, 4


def build_model(world: World) -> nn.Module:
    torch.manual_seed(0)  # the same first weights on every rank
    return nn.Sequential(nn.Linear(WORDS, 32), nn.GELU(), nn.Linear(32, MOODS)).to(world.device)


def build_dataset() -> TensorDataset:
    chance = torch.Generator().manual_seed(1)  # made-up reviews, the same on every rank
    counts = torch.poisson(torch.full((1000, WORDS), 0.5), generator=chance)
    moods = (counts @ torch.randn(WORDS, MOODS, generator=chance)).argmax(dim=1)
    return TensorDataset(counts, moods)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    counts, moods = batch
    return F.cross_entropy(model(counts), moods, reduction="none")  # [n]: one number for each sample


def build_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


job = Job(model=build_model, dataset=build_dataset, loss=loss, optimizer=build_optimizer, until=40)
