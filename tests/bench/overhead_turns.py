"""Part of the overhead benchmark: ours and DDP step by step in turn, in the same processes.

Whatever else the machine does hits both alike, so that a hundred steps tell within a percent what our part of a worker
costs, where runs one after the other differ by more than that. What the agent does beside it is told apart.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from elastic.config.load import resolve
from elastic.config.model import Settings
from elastic.plan.progress import warmup_cosine
from elastic.session import Session
from jobs.corpus import TextDataset, read_corpus
from jobs.gpt import GPT, GPTConfig, adamw, loss_per_sample
from tests.bench.overhead_cost import tree_cpu_s


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Clocks of one worker: seconds of the wall and of its own CPU."""

    wall_s: float
    cpu_s: float

    @classmethod
    def now(cls) -> Moment:
        return cls(wall_s=time.perf_counter(), cpu_s=time.process_time())


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A step of ours, all that follows on it included, then one of DDP's."""

    begin: Moment
    middle: Moment
    end: Moment

    def seconds(self, clock: str) -> tuple[float, float]:
        """Ours and DDP's."""
        begin, middle, end = (getattr(each, clock) for each in (self.begin, self.middle, self.end))
        return middle - begin, end - middle


def build_model(settings: Settings) -> GPT:
    """The default job's."""
    sizes = settings.model
    torch.manual_seed(settings.training.seed)
    return GPT(GPTConfig(layers=sizes.layers, width=sizes.width, heads=sizes.heads, context=sizes.context))


def build_optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """The default job's."""
    return adamw(model, learning_rate=settings.optimizer.learning_rate, weight_decay=settings.optimizer.weight_decay)


def set_rate(optimizer: torch.optim.Optimizer, settings: Settings, samples: int) -> None:
    """The default job's schedule."""
    total = settings.training.steps * settings.training.global_batch_size
    factor = warmup_cosine(samples, warmup_samples=settings.optimizer.warmup_samples, total_samples=total, floor=0.1)
    for part in optimizer.param_groups:
        part["lr"] = settings.optimizer.learning_rate * factor


def ddp_steps(settings: Settings, data: TextDataset) -> Iterator[None]:
    """DDP's side: one step for each `next`."""
    training = settings.training
    model = DistributedDataParallel(build_model(settings))
    optimizer = build_optimizer(model, settings)
    batches = iter(DataLoader(data, batch_size=training.micro_batch_size, sampler=DistributedSampler(data)))
    each = training.global_batch_size // training.micro_batch_size // dist.get_world_size()
    for step in range(1, training.steps + 1):
        for turn in range(each):
            with nullcontext() if turn == each - 1 else model.no_sync():
                (loss_per_sample(model, next(batches)).mean() / each).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.optimizer.max_grad_norm)
        set_rate(optimizer, settings, step * training.global_batch_size)
        optimizer.step()
        optimizer.zero_grad()
        yield


def agent_cpu_s() -> float:
    """CPU seconds of the agent and of what it runs beside the workers. Every rank calls it."""
    workers = torch.tensor([time.process_time()], dtype=torch.float64)
    dist.all_reduce(workers)
    return tree_cpu_s(os.getppid()) - float(workers)


def main() -> None:
    """Train two models at once; rank 0 writes to $MARKS what it saw from the first step of $MARK_STEPS on."""
    settings = resolve([], environ=os.environ, strict=False).settings
    warm = int(os.environ["MARK_STEPS"].split(",")[0])
    turns: list[Turn] = []
    with Session(settings=settings) as run:
        model = run.parallelize(build_model(settings))
        optimizer = build_optimizer(model, settings)
        run.track(model=model, optimizer=optimizer)
        data = TextDataset(read_corpus(settings.data.path), context=settings.model.context)
        other = ddp_steps(settings, data)
        begin = Moment.now()
        agent_s = began_s = 0.0
        for step in run.steps(data):
            with step:
                for batch in step.micro_batches():
                    step.backward(loss_per_sample(model, batch))
                step.clip_grad_norm_(settings.optimizer.max_grad_norm)
                set_rate(optimizer, settings, step.stop)
                optimizer.step()
            middle = Moment.now()
            next(other)
            end = Moment.now()
            if step.iteration > warm:
                turns.append(Turn(begin=begin, middle=middle, end=end))
            if step.iteration == warm:
                agent_s, began_s = agent_cpu_s(), time.perf_counter()
            if step.stop == settings.training.steps * settings.training.global_batch_size:
                agent_s, began_s = agent_cpu_s() - agent_s, time.perf_counter() - began_s
            # What follows on a step, its commit and a copy in memory, comes when the next one is asked for: ours.
            begin = Moment.now()
        if run.world.rank == 0:
            found = {clock: [turn.seconds(clock) for turn in turns] for clock in ("wall_s", "cpu_s")}
            Path(os.environ["MARKS"]).write_text(json.dumps(found | {"agent_share": agent_s / began_s}))


if __name__ == "__main__":
    main()
