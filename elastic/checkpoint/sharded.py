"""Tensors that are dealt out over ranks (torch's DTensor) -> this rank's plain part and where it lies in the whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from elastic.checkpoint.cuts import Cut
from elastic.errors import CheckpointError


def is_spread(tensor: Tensor) -> bool:
    """Whether it is dealt out over ranks, or copied to them, by torch."""
    # By name: importing torch.distributed.tensor takes a second, which most runs need not spend.
    return type(tensor).__module__.startswith("torch.distributed.tensor")


def part_of(tensor: Tensor, *, name: str) -> tuple[Tensor, Cut | None]:
    """What this rank holds of a tensor, sharing its memory; and the cut, None where it holds all of it.

    Raises:
        CheckpointError: it is dealt out in a way that is not supported.
    """
    return _part_of_spread(tensor, name) if is_spread(tensor) else (tensor.detach(), None)


@torch.no_grad()
def _part_of_spread(tensor: Tensor, name: str) -> tuple[Tensor, Cut | None]:
    spread: Any = tensor
    local: Tensor = spread.to_local().detach()
    mesh, (placement, *more) = spread.device_mesh, spread.placements
    if mesh.ndim == 1 and not more and placement.is_replicate():
        return local, None
    if mesh.ndim != 1 or more or type(placement).__name__ != "Shard" or tensor.dtype == torch.complex128:
        raise CheckpointError(
            f"{name} is a {tensor.dtype} tensor placed as {spread.placements} on a mesh of {mesh.ndim} dimensions: "
            "only Shard or Replicate on a mesh of one dimension can be saved"
        )
    cut = Cut(
        shape=tuple(tensor.shape),
        axis=placement.dim % tensor.dim(),
        ranks=mesh.size(),
        rank=mesh.get_coordinate()[0],
    )
    if tuple(local.shape) != cut.window.size:
        raise CheckpointError(
            f"{name}: rank {cut.rank} holds {list(local.shape)} of {list(cut.shape)}, expected "
            f"{list(cut.window.size)}: it is dealt out unevenly in another way than torch's Shard does"
        )
    return local, cut


def own_part(saved: Tensor, cut: Cut | None, *, known: Cut | None) -> Tensor:
    """This rank's part of a saved tensor that is given whole; one that is its part already, or that does not fit the
    cut, is left as it is. `known`: the cut by which it was read."""
    if cut is None or known == cut or tuple(saved.shape) != cut.shape:
        return saved
    return saved[cut.window.slices((0,) * saved.dim())]


def state_names(state: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(parameter, tensor name) for each tensor in the JSON of an optimizer's state."""
    for member, entries in state.items():
        for _, value in entries:
            if isinstance(value, dict) and isinstance(value.get("name"), str):
                yield member, value["name"]
