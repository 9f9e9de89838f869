"""Worlds one after another in the same processes: each restores what the last one saved, tells what it has, saves it.

The plan is in SHARDS_PLAN: a list of [world size, strategy]; the root in SHARDS_ROOT; a store to meet at is at
MASTER_ADDR and MASTER_PORT. A process that a world has no rank for waits for the next one. With SHARDS_MEMORY, a
directory, each process is a node that keeps copies in memory: what it has is gone where a world leaves it out. With
SHARDS_STAY a process keeps its objects from one world to the next, and leaves each in the midst of a pass.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from elastic.distributed.dealing import Dealt
from elastic.distributed.group import Collectives
from elastic.distributed.joining import join
from elastic.distributed.replicate import Replica
from elastic.plan.tree import Spread
from elastic.session.ending import exit_now
from elastic.world import World
from tests.harness.arenas import open_node
from tests.harness.awkward import DTYPES, Masters
from tests.harness.checkpoints import Bench, meta


class Block(nn.Module):
    """Dimensions that divide by nothing, in one type for itself."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.wide = nn.Linear(5, 7, dtype=dtype)
        self.one_row = nn.Linear(7, 1, bias=False, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.one_row(self.wide(x.to(self.wide.weight.dtype))))


class Mixed(nn.Module):
    """What is dealt out and what cannot be, ties, frozen ones, buffers of every type; one block in bfloat16."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(7, 5)
        self.head = nn.Linear(5, 7)
        self.head.weight = self.embed.weight
        self.blocks = nn.ModuleList([Block(torch.float32), Block(torch.bfloat16)])
        self.scale = nn.Parameter(torch.randn(()))
        self.no_rows = nn.Parameter(torch.zeros(0, 5))
        self.turned = nn.Parameter(torch.randn(5, 3).t())
        self.conv = nn.Parameter(torch.randn(2, 3, 5, 7).to(memory_format=torch.channels_last))
        self.low = nn.Parameter(torch.randn(11).bfloat16())
        self.frozen = nn.Parameter(torch.randn(3, 2), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(4, 2))
        for dtype in DTYPES:
            raw = torch.randint(0, 2 if dtype is torch.bool else 256, (48,), dtype=torch.uint8)
            self.register_buffer(f"of_{str(dtype)[6:]}", (raw if dtype is not torch.bool else raw.bool()).view(dtype))

    def forward(self, step: int) -> torch.Tensor:
        x = self.embed(torch.arange(7)) + 0.01 * step
        x = x + sum(block(x).float() for block in self.blocks)
        rest = self.turned.square().sum() + self.conv.abs().sum() + self.low.float().sum()
        return self.head(x).square().sum() * self.scale + rest + self.no_rows.sum()


def make(seed: int, strategy: str, group: Collectives, *, at_once: bool = True) -> tuple[dict[str, Any], Any]:
    model = Mixed(seed)
    lies: Any = Dealt(model, group, at_once=at_once) if strategy == "fsdp2" else Replica(model, group)
    if strategy != "fsdp2":
        lies.align()
    in_bfloat16 = [*model.blocks[1].parameters(), model.low]
    rest = [each for each in model.parameters() if not any(each is other for other in in_bfloat16)]
    groups = [{"params": rest[:2], "lr": 1e-2}, {"params": rest[2:], "weight_decay": 0.0, "betas": (0.8, 0.9)}]
    optimizer = torch.optim.AdamW(groups, amsgrad=True)
    masters = Masters(in_bfloat16)  # not elementwise as far as we know: works on DTensors
    lies.adopt(optimizer)
    lies.adopt(masters)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=9)
    return {"model": model, "optimizer": optimizer, "masters": masters, "schedule": schedule}, lies


def step(tracked: dict[str, Any], lies: Any, number: int, group: Collectives) -> None:
    lies.begin_step(Spread(tuple(range(rank, rank + 1) for rank in range(group.size))))
    lies.begin_round(group.rank, last=True)
    tracked["model"](number).backward()
    lies.send()
    lies.reduce()
    tracked["optimizer"].step()
    tracked["masters"].step()
    tracked["schedule"].step()


def digests(tracked: dict[str, Any]) -> dict[str, str]:
    """Of every whole tensor, its type and shape, and of every setting. All ranks call it."""
    model = tracked["model"]
    found = {name: _digest(each) for name, each in model.state_dict(keep_vars=True).items()}
    names = {id(each): name for name, each in model.named_parameters()}
    for key in ("optimizer", "masters"):
        for parameter in [each for group in tracked[key].param_groups for each in group["params"]]:
            for entry, value in tracked[key].state.get(parameter, {}).items():
                found[f"{key}.{entry}.{names[id(parameter)]}"] = _digest(_whole(value, parameter))
        for at, group in enumerate(tracked[key].param_groups):
            members = [names[id(each)] for each in group["params"]]
            found[f"{key}.group.{at}"] = repr([members, {k: v for k, v in group.items() if k != "params"}])
    found["schedule"] = repr(tracked["schedule"].state_dict())
    return found


def _whole(value: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    if not isinstance(parameter, DTensor) or isinstance(value, DTensor) or value.dim() == 0:
        return value
    shape, stride = parameter.shape, parameter.stride()
    return DTensor.from_local(value, parameter.device_mesh, parameter.placements, shape=shape, stride=stride)


@torch.no_grad()
def _digest(tensor: torch.Tensor) -> str:
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.detach()
    data = whole.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{whole.dtype} {list(whole.shape)} {hashlib.sha256(data).hexdigest()[:16]}"


def open_links() -> tuple[int, int]:
    """Sockets and threads of this process."""
    fds = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    sockets = [each for each in fds if os.path.lexists(each) and os.readlink(each).startswith("socket:")]
    return len(sockets), len(os.listdir("/proc/self/task"))


def break_off(tracked: dict[str, Any], lies: Any, group: Collectives) -> None:
    """Leave a pass between forward and backward."""
    lies.begin_step(Spread(tuple(range(rank, rank + 1) for rank in range(group.size))))
    lies.begin_round(group.rank, last=True)
    tracked["model"](0)


def main() -> None:
    torch.set_num_threads(1)
    rank, plan = int(os.environ["RANK"]), json.loads(os.environ["SHARDS_PLAN"])
    bench, stays = Bench(Path(os.environ["SHARDS_ROOT"])), "SHARDS_STAY" in os.environ
    told, kept = [], None
    for at, (size, strategy) in enumerate(plan, start=1):
        if rank >= size:
            kept = None
            continue
        group = join(World(rank=rank, size=size, generation=at, distributed=True))
        tracked, lies = kept or make(at, strategy, group, at_once=at == 1 or not stays)
        if stays:
            kept = tracked, lies
            if at > 1:
                lies.move(group)
        memory = os.environ.get("SHARDS_MEMORY")
        tier = open_node(Path(memory), f"node{rank}") if memory else None
        manager = bench.manager(group=group, generation=at, tier=tier, memory_every_steps=1 if memory else 0)
        restored = manager.restore(tracked)
        if at == 1:
            for number in range(3):
                step(tracked, lies, number, group)
        stage = digests(tracked)
        saved = manager.save(tracked, meta(at, generation=at))
        manager.snapshot(tracked, meta(2 * at, generation=at))  # newer than what is on disk, with the same bits
        step(tracked, lies, 3, group)  # a restored state goes on
        about = {"saved": saved.saved, "reason": saved.reason, "tier": restored.tier, "links": open_links()}
        told.append({"at": at, "rank": rank, "digests": stage} | about)
        if stays:
            break_off(tracked, lies, group)
        group.leave()
    print(json.dumps(told), flush=True)
    exit_now(0)


if __name__ == "__main__":
    main()
