"""A run of steps as a session does them, on any group, and the parts of it that tests vary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from elastic.checkpoint.restored import Restored
from elastic.clock import ManualClock
from elastic.config.load import with_overrides
from elastic.config.model import Settings
from elastic.distributed.group import Collectives
from elastic.distributed.replicate import Replica
from elastic.distributed.strategy import Strategy
from elastic.events import Event, StepCommitted, read_records
from elastic.session.course import Course
from elastic.session.source import DataSource
from elastic.session.step import Step
from elastic.world import World

SAMPLES, FEATURES, CLASSES = 101, 6, 3
STEPS = 40
RAGGED = {"global_batch_size": 10, "micro_batch_size": 3, "steps": STEPS}
"""4 slots, the last of one sample: no world size but 1 and 4 shares them evenly, and the fifth rank has none."""


def dataset() -> TensorDataset:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, FEATURES, generator=draw)
    return TensorDataset(x, (x @ torch.randn(FEATURES, CLASSES, generator=draw)).argmax(1))


def model(*, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, CLASSES)).double()


def per_sample(model: nn.Module, batch: Any) -> torch.Tensor:
    x, y = batch
    return F.cross_entropy(model(x.double()), y, reduction="none")


def weighted(model: nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """As with tokens: samples weigh 1 to 3, and class 0 not at all beyond its first unit."""
    _, y = batch
    weights = (1 + y).double()
    return (per_sample(model, batch) * weights).sum(), weights.sum()


@dataclass
class Run:
    """What came of it."""

    losses: list[float]
    parameters: torch.Tensor
    events: list[Event] = field(default_factory=list)
    """Of the steps."""
    course: Course | None = None
    norms: list[float] = field(default_factory=list)


def told_of(directory: Path, kind: type[Any]) -> list[Any]:
    """The events of a kind that the sessions of a test's `make_session` told, by time."""
    return [each.event for each in read_records(directory / "run" / "events") if isinstance(each.event, kind)]


def settings(**overrides: Any) -> Settings:
    return with_overrides(Settings(), {**RAGGED, **overrides})


def course(*, rank: int = 0, size: int = 1, events: list[Event] | None = None, restored: Restored | None = None,
           data: Any = None, clock: ManualClock | None = None, group: Collectives | None = None,
           **overrides: Any) -> Course:  # fmt: skip
    return Course(
        settings=settings(**overrides),
        world=World(rank=rank, size=size),
        restored=restored or Restored(reason="a test"),
        source=data if isinstance(data, DataSource) else DataSource(dataset=dataset() if data is None else data),
        emit=(events if events is not None else []).append,
        clock=clock or ManualClock(),
        group=group,
    )


def train(
    group: Collectives,
    *,
    loss: Callable[..., Any] = per_sample,
    dropout: float = 0.0,
    body: Callable[[nn.Module, torch.optim.Optimizer, Step], None] | None = None,
    strategy: Callable[[nn.Module, Collectives], Strategy] = Replica,
    most_norm: float | None = None,
    **overrides: Any,
) -> Run:
    """The loop of a session: all steps of a run. `body` replaces what happens inside `with step`."""
    lies = strategy(model(dropout=dropout), group)
    lies.align()
    net = lies.model
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
    lies.adopt(optimizer)
    run = Run(losses=[], parameters=torch.empty(0))
    run.course = course(rank=group.rank, size=group.size, group=group, events=run.events, **overrides)

    def ordinary(net: nn.Module, optimizer: torch.optim.Optimizer, step: Step) -> None:
        for batch in step.micro_batches():
            step.backward(loss(net, batch))
        if most_norm is not None:
            run.norms.append(step.clip_grad_norm_(most_norm))
        optimizer.step()

    while not run.course.finished:
        step = run.course.next_step(group, (lies,), lambda: False)
        with step:
            (body or ordinary)(net, optimizer, step)
        run.course.commit(step)
        assert step.totals is not None
        run.losses.append(step.totals.loss)
    run.events = [event for event in run.events if isinstance(event, StepCommitted)]
    whole = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in net.parameters()]
    run.parameters = nn.utils.parameters_to_vector(whole).detach()
    return run
