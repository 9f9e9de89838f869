"""Modules whose parameters are dealt out over ranks that are not there: for code that only looks at placements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextmanager
def mesh_of(rank: int, ranks: int) -> Iterator[DeviceMesh]:
    """A mesh as one rank of a world sees it; what is made with it may be used afterwards."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        yield init_device_mesh("cpu", (ranks,))
    finally:
        dist.destroy_process_group()


@torch.no_grad()
def deal(tracked: dict[str, Any], *, rank: int, ranks: int, axis: int = 0, without: tuple[str, ...] = ()) -> None:
    """Leave one rank's part of every parameter of the model that has dimensions, and of its state.

    The optimizer's state stays plain, as that of one that works on the parts.
    """
    model, optimizer = tracked["model"], tracked.get("optimizer")
    with mesh_of(rank, ranks) as mesh:
        new: dict[int, Any] = {}
        for module in model.modules():
            for name, whole in list(module._parameters.items()):
                if whole is None or whole.dim() <= axis or name in without:
                    continue
                if id(whole) not in new:
                    # No nn.Parameter: its making asks torch's cache, where all ranks' meshes are the same one.
                    new[id(whole)] = _deal(whole, mesh, axis).requires_grad_(whole.requires_grad)
                    _move(optimizer, whole, new[id(whole)], mesh, axis)
                module._parameters[name] = new[id(whole)]


def part(whole: torch.Tensor, rank: int, ranks: int, axis: int = 0) -> torch.Tensor:
    """The rows of one rank, by torch's own way of dealing."""
    chunks = whole.chunk(ranks, dim=axis) if whole.shape[axis] else [whole]
    return chunks[rank] if rank < len(chunks) else whole.narrow(axis, whole.shape[axis], 0)


def _deal(whole: torch.Tensor, mesh: DeviceMesh, axis: int) -> DTensor:
    rank, ranks = mesh.get_coordinate()[0], mesh.size()
    local = part(whole.detach(), rank, ranks, axis).contiguous()
    contiguous = torch.empty(whole.shape, device="meta").stride()
    return DTensor.from_local(local, mesh, [Shard(axis)], run_check=False, shape=whole.shape, stride=contiguous)


def _move(optimizer: Any, old: nn.Parameter, new: Any, mesh: DeviceMesh, axis: int) -> None:
    if optimizer is None:
        return
    for group in optimizer.param_groups:
        group["params"] = [new if each is old else each for each in group["params"]]
    if old in optimizer.state:
        rank, ranks = mesh.get_coordinate()[0], mesh.size()
        optimizer.state[new] = {
            key: part(value, rank, ranks, axis).contiguous().clone() if value.dim() else value
            for key, value in optimizer.state.pop(old).items()
        }
