"""GPT: a small decoder-only transformer over bytes, written to be read and copied."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BYTES = 256


@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """Sizes of a GPT. `width` is the size of the residual stream, a multiple of `heads`."""

    layers: int = 4
    width: int = 256
    heads: int = 8
    context: int = 64
    dropout: float = 0.0
    vocabulary: int = BYTES


class Attention(nn.Module):
    """Each position looks at itself and at those before it, in several heads."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:  # [batch, time, width] -> the same
        batch, time, width = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        return out


class Block(nn.Module):
    """Attention, then a feed-forward layer, each on a normalised copy of the residual stream and added to it."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm_2 = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm_1(x)))
        out: Tensor = x + self.dropout(self.down(F.gelu(self.up(self.norm_2(x)))))
        return out


class GPT(nn.Module):
    """Tokens to logits of the token that follows each. The embedding is also the output layer."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.token = nn.Embedding(config.vocabulary, config.width)
        self.place = nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self._first_weights()

    def forward(self, tokens: Tensor) -> Tensor:  # [batch, time] -> [batch, time, vocabulary]
        x = self.dropout(self.token(tokens) + self.place.weight[: tokens.shape[1]])
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token.weight)

    def _first_weights(self) -> None:
        """Small normal weights; what adds to the residual stream smaller still, so that depth does not blow it up."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() > 1:
                into_stream = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * self.config.layers) ** 0.5 if into_stream else 0.02)


def loss_per_sample(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Mean cross entropy of each sample's tokens, in nats, shape [n]."""
    tokens, targets = batch
    logits: Tensor = model(tokens)
    losses = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    return losses.view(targets.shape).mean(dim=1)


def adamw(model: nn.Module, *, learning_rate: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW that decays matrices and leaves biases and norms alone."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))
