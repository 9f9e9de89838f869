"""A training with all that could tell one world size from another, and a hash of every bit that came of it."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.data import TensorDataset

from elastic.distributed.group import Collectives
from elastic.distributed.replicate import Replica
from elastic.distributed.strategy import Strategy
from elastic.plan.progress import warmup_cosine
from jobs.gpt import GPT, GPTConfig, adamw, loss_per_sample
from tests.harness.training import course

SEVEN = {"global_batch_size": 20, "micro_batch_size": 3, "steps": 4}
"""7 slots, the last one short: no world size but 1 and 7 shares them evenly."""
VARIANTS: tuple[dict[str, Any], ...] = ({}, {"autocast": True}, {"dtype": torch.bfloat16}, {"global_batch_size": 24})
"""float32, mixed precision, parameters of two bytes, and slots that fit two ranks."""
EXACT = functools.partial(Replica, exact=True)
TINY = GPTConfig(layers=2, width=32, heads=4, context=12, dropout=0.1, vocabulary=61)


def dataset() -> TensorDataset:
    text = torch.randint(0, TINY.vocabulary, (97, TINY.context + 1), generator=torch.Generator().manual_seed(5))
    return TensorDataset(text[:, :-1], text[:, 1:])


def train_exact(
    group: Collectives,
    *,
    autocast: bool = False,
    dtype: torch.dtype = torch.float32,
    twice: bool = False,
    strategy: Callable[..., Strategy] = EXACT,
    dealt: bool = False,
    **overrides: Any,
) -> tuple[str, list[float]]:
    """Train; return the hash of parameters and optimizer state, and the losses.

    `twice`: two models at once. `dealt`: as one does where parameters are dealt out, or may be at another world size.
    """
    torch.manual_seed(3)
    nets = [GPT(TINY).to(dtype) for _ in range(2 if twice else 1)]
    replicas = tuple(strategy(net, group) for net in nets)
    for replica in replicas:
        replica.overlap = not twice
    optimizers = [adamw(net, learning_rate=3e-3, weight_decay=0.1) for net in nets]
    for replica, optimizer in zip(replicas, optimizers, strict=True):
        replica.adopt(optimizer)
    run = course(rank=group.rank, size=group.size, data=dataset(), **{**SEVEN, **overrides})
    losses = []
    while not run.finished:
        step = run.next_step(group, replicas, lambda: False)
        with step:
            for tokens, targets in step.micro_batches():
                for net in nets:
                    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                        loss = loss_per_sample(net, (tokens, targets))
                    weights = 0.3 + targets[:, 0] / TINY.vocabulary
                    step.backward(((loss * weights).sum(), weights.sum()))
            factor = warmup_cosine(step.stop, warmup_samples=30, total_samples=120)
            step.clip_grad_norm_(0.5)
            for net, optimizer in zip(nets, optimizers, strict=True):
                if not dealt:
                    nn.utils.clip_grad_norm_(net.parameters(), 0.4)  # torch's own: of parts it is another sum
                for part in optimizer.param_groups:
                    part["lr"] = 3e-3 * factor
                optimizer.step()
        run.commit(step)
        assert step.totals is not None
        losses.append(step.totals.loss)
    return hash_of(nets, optimizers), losses


def hash_of(nets: list[GPT], optimizers: list[torch.optim.Optimizer]) -> str:
    """Of every bit of the parameters and of what the optimizers keep of them."""
    digest = hashlib.sha256()
    for net, optimizer in zip(nets, optimizers, strict=True):
        for parameter in net.parameters():
            for tensor in (parameter.detach(), *optimizer.state[parameter].values()):
                whole = _whole(tensor, parameter).contiguous()
                digest.update(whole.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _whole(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Of a part, all rows of all ranks; a state is a plain tensor of as many rows as its parameter's part."""
    if isinstance(tensor, DTensor):
        return tensor.full_tensor()
    if not isinstance(parameter, DTensor) or tensor.shape != parameter.to_local().shape:
        return tensor
    shape, stride = parameter.shape, parameter.stride()
    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(tensor, mesh, placements, run_check=False, shape=shape, stride=stride).full_tensor()
