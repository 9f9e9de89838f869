"""The other side of the overhead benchmark: the same model in a bare DDP loop, as the public documents teach it."""

from __future__ import annotations

import contextlib
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from elastic.config.load import resolve
from elastic.plan.progress import warmup_cosine
from jobs.corpus import TextDataset, read_corpus
from jobs.gpt import GPT, GPTConfig, adamw, loss_per_sample
from tests.bench.overhead_gate import Gate


def main() -> None:
    """Train for training.steps; the settings are those of the other side."""
    settings = resolve([], environ=os.environ, strict=False).settings
    training, sizes, rates = settings.training, settings.model, settings.optimizer
    torch.set_num_threads(training.threads_per_worker)
    dist.init_process_group("gloo")
    torch.manual_seed(training.seed)
    config = GPTConfig(layers=sizes.layers, width=sizes.width, heads=sizes.heads, context=sizes.context)
    model = DistributedDataParallel(GPT(config))
    optimizer = adamw(model, learning_rate=rates.learning_rate, weight_decay=rates.weight_decay)
    data = TextDataset(read_corpus(settings.data.path), context=sizes.context)
    batches = iter(DataLoader(data, batch_size=training.micro_batch_size, sampler=DistributedSampler(data)))
    each = training.global_batch_size // training.micro_batch_size // dist.get_world_size()
    samples = training.steps * training.global_batch_size
    gate = Gate()
    for step in range(1, training.steps + 1):
        for turn in range(each):
            with contextlib.nullcontext() if turn == each - 1 else model.no_sync():
                (loss_per_sample(model, next(batches)).mean() / each).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), rates.max_grad_norm)
        factor = warmup_cosine(
            step * training.global_batch_size, warmup_samples=rates.warmup_samples, total_samples=samples, floor=0.1
        )
        gate(step)
        for part in optimizer.param_groups:
            part["lr"] = rates.learning_rate * factor
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
