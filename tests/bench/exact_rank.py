"""One rank of the exact benchmark: DDP, our plain sum and our exact sum train the same model in turns.

Its last line of output is JSON: of each block of steps, by contender, the slowest rank's seconds and the CPU seconds of
all ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from elastic.distributed.dealing import Dealt
from elastic.distributed.group import Collectives
from elastic.distributed.joining import join
from elastic.distributed.replicate import Replica
from elastic.distributed.strategy import Strategy
from elastic.plan.batch import share
from elastic.plan.tree import Spread
from elastic.session.allocator import keep_freed_memory
from elastic.session.ending import exit_now
from elastic.world import World
from jobs.gpt import GPT, GPTConfig, adamw, loss_per_sample

SIZES = {
    "full": GPTConfig(layers=6, width=320, heads=5, context=64, vocabulary=8192),
    "tiny": GPTConfig(layers=1, width=32, heads=2, context=16, vocabulary=64),
}
CONTENDERS = ("ddp", "plain", "exact", "parts", "exact parts")


def make(contender: str, group: Collectives, *, size: str, slots: int) -> Callable[[], None]:
    """One optimizer step of a contender, over all slots of the world, one sample each."""
    config = SIZES[size]
    torch.manual_seed(0)
    net: nn.Module = GPT(config)
    spread = Spread(tuple(share(slots, world_size=group.size, rank=rank) for rank in range(group.size)))
    own = spread.ranks[group.rank]
    draw = torch.Generator().manual_seed(group.rank)
    text = torch.randint(0, config.vocabulary, (1, config.context + 1), generator=draw)
    batch = (text[:, :-1], text[:, 1:])
    if contender == "ddp":
        ddp = DistributedDataParallel(net)
        optimizer = adamw(net, learning_rate=1e-4, weight_decay=0.1)

        def ddp_step() -> None:
            for slot in own:
                with contextlib.nullcontext() if slot == own[-1] else ddp.no_sync():
                    (loss_per_sample(ddp, batch).sum() / len(own)).backward()
            optimizer.step()
            optimizer.zero_grad()

        return ddp_step
    lies = strategy(contender, net, group)
    optimizer = adamw(net, learning_rate=1e-4, weight_decay=0.1)  # of the parts, where it is dealt out by now
    lies.adopt(optimizer)

    def own_step() -> None:
        lies.begin_step(spread)
        for slot in own:
            lies.begin_round(slot, last=slot == own[-1])
            (loss_per_sample(net, batch).sum() / slots).backward()
        lies.send()
        lies.reduce()
        optimizer.step()

    return own_step


def strategy(contender: str, net: nn.Module, group: Collectives) -> Strategy:
    """How a contender's model lies on the ranks."""
    if "parts" not in contender:
        return Replica(net, group, exact=contender == "exact")
    return Dealt(net, group, exact="exact" in contender)


def block(step: Callable[[], None], *, steps: int) -> tuple[float, float]:
    """Seconds of some steps, the slowest rank's, and CPU seconds, of all ranks together."""
    dist.barrier()
    began, began_cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    took = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
    cpu = torch.tensor([time.process_time() - began_cpu], dtype=torch.float64)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    dist.all_reduce(cpu)
    return float(took), float(cpu)


def main() -> None:
    """Warm up, then blocks of all contenders in turns, whose order rotates."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=SIZES, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as every worker does; DDP and both of ours are in the same process, and have it alike
    world = World.from_environ(os.environ)
    group = join(world)
    steps = {name: make(name, group, size=args.size, slots=args.slots) for name in args.contenders}
    for step in steps.values():
        block(step, steps=2)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in args.contenders}
    for turn in range(args.blocks):
        first = turn % len(args.contenders)
        for name in args.contenders[first:] + args.contenders[:first]:
            found[name].append(block(steps[name], steps=args.steps))
    if world.rank == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    exit_now(0)


if __name__ == "__main__":
    main()
