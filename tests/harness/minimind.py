"""MiniMind's own way of training and saving, small: what its resume file is made by and what is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn


class SmallLM(nn.Module):
    """Names and ties as there: embedding and head share their weight; rotary tables are no part of the state."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(11, 4)
        self.model.layers = nn.ModuleList([nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)])
        self.model.norm = nn.LayerNorm(4, bias=False)
        self.lm_head = nn.Linear(4, 11, bias=False)
        self.model.embed_tokens.weight = self.lm_head.weight
        self.model.register_buffer("freqs_cos", torch.ones(3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.model.embed_tokens(x)
        for layer in self.model.layers:
            h = h + torch.tanh(layer(h))
        return self.lm_head(self.model.norm(h))


def make(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = SmallLM()
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=5e-3),
        "scaler": torch.amp.GradScaler("cpu", enabled=True, init_scale=16.0),
    }


def train(tracked: dict[str, Any], steps: int) -> None:
    for step in range(steps):
        x = (torch.arange(12) * (step + 1)) % 11
        loss = nn.functional.cross_entropy(tracked["model"](x[:-1]), x[1:])
        tracked["scaler"].scale(loss).backward()
        tracked["scaler"].step(tracked["optimizer"])
        tracked["scaler"].update()
        tracked["optimizer"].zero_grad()


def resume_file(path: Path, tracked: dict[str, Any], *, epoch: int, step: int, world_size: int) -> None:
    """As `lm_checkpoint` writes it."""
    half = {name: value.half().cpu() for name, value in tracked["model"].state_dict().items()}
    data = {
        "model": half,
        "optimizer": tracked["optimizer"].state_dict(),
        "epoch": epoch,
        "step": step,
        "world_size": world_size,
        "wandb_id": None,
        "scaler": tracked["scaler"].state_dict(),
    }
    torch.save(data, path)
