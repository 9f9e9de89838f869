"""The model that both sides of the recovery benchmark train: a small transformer over random bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from elastic.config.model import Settings
    from elastic.job import Job

WIDTH, CONTEXT, BATCH = 128, 64, 4


class SmallLM(nn.Module):
    """Embedding, two encoder layers, a head; logits of every position."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, WIDTH)
        self.layers = nn.Sequential(
            *(nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, dropout=0.0) for _ in range(2))
        )
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embed(x)))


def losses(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """One number for each sample: the model copies its input."""
    return functional.cross_entropy(model(x).transpose(1, 2), x, reduction="none").mean(1)


class Bytes(torch.utils.data.Dataset[torch.Tensor]):
    """Random rows, the same ones for the same index."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randint(0, 256, (CONTEXT,), generator=torch.Generator().manual_seed(index))


def job(settings: Settings) -> Job:
    """The same training as stock_train.py, as a Job."""
    from elastic.job import Job

    def build(world: Any) -> nn.Module:
        torch.manual_seed(0)
        return SmallLM()

    return Job(model=build, dataset=Bytes, loss=losses, optimizer=lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3))
