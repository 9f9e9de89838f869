"""FSDP2 with sums whose bits do not depend on the world size.

`fully_shard` sums gradients over ranks in an order that is the back end's. Here it sums nothing: each rank keeps the
whole gradients of its micro-batches, as replicas do, adds them up in the same tree, and takes its rows of what comes
of it. Norms are measured on whole gradients laid out as replicas lay them out. Parameters and the optimizer's state
stay dealt out; the price is room for whole gradients, and the traffic of a sum instead of a half of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from elastic.distributed.fsdp import ELEMENTWISE, Sharded
from elastic.distributed.group import Collectives
from elastic.distributed.replicate import Replica
from elastic.errors import UsageError
from elastic.plan.tree import Spread

_WIDE = (torch.float32, torch.float64)


class ExactSharded(Sharded):
    """One rank's part of a model."""

    def __init__(
        self, model: nn.Module, group: Collectives, *, device: str = "cpu", units: Sequence[nn.Module] | None = None
    ) -> None:
        """As `Sharded`."""
        super().__init__(model, group, device=device, units=units)
        for part in model.modules():
            if isinstance(part, FSDPModule):
                part.unshard()
        # torch keeps them, and gives them memory while a unit is together.
        self._wholes = list(model.parameters())
        self._deal()
        self._sums = Replica(model, group, exact=True, parameters=lambda: self._wholes)

    def begin_step(self, spread: Spread) -> None:
        """Drop the gradients of the step before."""
        self._computing = False
        self._deal()
        for part, whole in zip(self.model.parameters(), self._wholes, strict=True):
            part.grad = None
            whole.requires_grad_(part.requires_grad)
        self._sums.begin_step(spread)

    def begin_round(self, slot: int, *, last: bool) -> None:
        """Whole gradients of this slot follow."""
        self._sums.begin_round(slot, last=False)
        self._keep_together(last=last)

    def begin_stand_in(self, *, last: bool) -> None:
        """The same without a slot: not even a zero is added, since that is not nothing to a zero below it."""
        self._sums.drop()
        self._keep_together(last=last)

    def send(self) -> None:
        """Send this rank's sums. Raises PeerLost, UsageError."""
        self._sums.send()

    def reduce(self) -> None:
        """Wait for the sums; this rank's rows of them are the gradients now. Raises PeerLost."""
        self._sums.reduce()
        self._computing = False
        parts = {id(whole): part for part, whole in zip(self.model.parameters(), self._wholes, strict=True)}
        for whole, gradient in self._sums.sums:
            part = parts[id(whole)]
            if isinstance(part, DTensor):
                part.grad = self._dealt_like(part, gradient)

    def scale_(self, factor: float) -> None:
        """Multiply all gradients: the parts are views of the whole ones."""
        self._sums.scale_(factor)

    def grad_norm(self) -> float:
        """Length of all gradients together, as replicas measure it."""
        return self._sums.grad_norm()

    def _keep_together(self, *, last: bool) -> None:
        model: Any = self.model
        self._computing = True
        model.set_requires_gradient_sync(False)
        model.set_is_last_backward(last)

    def _dealt_like(self, part: DTensor, gradient: Tensor) -> Tensor:
        rows = gradient.chunk(self._group.size)
        own = rows[self._group.rank] if self._group.rank < len(rows) else gradient[:0]
        return DTensor.from_local(
            own, part.device_mesh, part.placements, run_check=False, shape=part.shape, stride=part.stride()
        )


def check_optimizer(optimizer: Optimizer) -> None:
    """See whether an optimizer gives an element the same bits wherever its part begins.

    Raises:
        UsageError: another one.
    """
    kind = type(optimizer)
    types = {each.dtype for group in optimizer.param_groups for each in group["params"]}
    if kind not in ELEMENTWISE or any(group.get("fused") for group in optimizer.param_groups):
        raise UsageError(
            f"training.numerics: exact with fsdp2 needs an optimizer that treats each element by itself, not "
            f"fused; {kind.__name__} is none that is known to. Use torch.optim.AdamW, or strategy: replicate"
        )
    # The last elements of a tensor are computed one by one, and in narrow types some sums round otherwise there.
    if kind is not optim.AdamW and not types.issubset(_WIDE):
        raise UsageError(
            f"training.numerics: exact with fsdp2: {kind.__name__} rounds parameters of {sorted(map(str, types))} "
            "differently at the end of a part. Use torch.optim.AdamW, parameters of float32, or strategy: replicate"
        )
