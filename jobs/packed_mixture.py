"""A mixture of two corpora in fixed shares; lines of any length packed into rows, the loss weighed by tokens."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elastic import Job, MixedDataset, World
from elastic.data.packing import Packed, pack
from jobs.corpus import read_corpus
from jobs.gpt import adamw

if TYPE_CHECKING:
    from elastic.config.model import Settings

BYTES, ROW = 256, 64
SHARES = (0.7, 0.3)
"""Of comments and of all other lines, whatever there is of each."""


class PackedModel(nn.Module):
    """A transformer in which each sequence of a row sees only itself."""

    def __init__(self, *, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.token, self.place = nn.Embedding(BYTES, width), nn.Embedding(ROW, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, BYTES)

    def forward(self, packed: Packed) -> Tensor:  # rows of ROW tokens -> [rows, ROW, BYTES]
        same = packed.segments[:, :, None] == packed.segments[:, None, :]
        hidden = ~same.tril().repeat_interleave(self.heads, dim=0)
        logits: Tensor = self.out(self.blocks(self.token(packed.tokens) + self.place(packed.positions), mask=hidden))
        return logits


def loss(model: nn.Module, packed: Packed) -> tuple[Tensor, Tensor]:
    """Cross entropy of every token that follows another one of its sequence, and how many these are."""
    follows = (packed.segments[:, 1:] == packed.segments[:, :-1]) & (packed.segments[:, 1:] > 0)
    losses = F.cross_entropy(model(packed)[:, :-1].flatten(0, 1), packed.tokens[:, 1:].flatten(), reduction="none")
    return (losses * follows.flatten()).sum(), follows.sum()


def job(settings: Settings) -> Job:
    """The job that the settings describe."""
    sizes, rates = settings.model, settings.optimizer

    def build_model(world: World) -> nn.Module:
        torch.manual_seed(settings.training.seed)  # the same first weights on every rank
        return PackedModel(layers=sizes.layers, width=sizes.width, heads=sizes.heads).to(world.device)

    def build_dataset() -> MixedDataset:
        text = read_corpus(settings.data.path).tokens.tobytes().replace(b"\0", b"\n")  # between documents
        lines = [line for line in text.splitlines() if line.strip()]
        comments = [torch.frombuffer(bytearray(line), dtype=torch.uint8) for line in lines if b"#" in line]
        others = [torch.frombuffer(bytearray(line), dtype=torch.uint8) for line in lines if b"#" not in line]
        return MixedDataset([comments, others], weights=SHARES)

    return Job(
        model=build_model,
        dataset=build_dataset,
        collate=functools.partial(pack, length=ROW),
        loss=loss,
        optimizer=lambda model: adamw(model, learning_rate=rates.learning_rate, weight_decay=rates.weight_decay),
        max_grad_norm=rates.max_grad_norm or None,
    )
