"""The replicate strategy: every rank holds the whole model, gradients are summed over ranks once a step.

Gradients are views of one flat buffer for each dtype and device, so that summing them is one collective and nothing
is copied. The sum is not divided by the world size: losses are sums with a weight, and the division by the global
weight (`scale_`) makes uneven shares exact.
"""

from __future__ import annotations

import torch
from torch import nn

from elastic.distributed.group import Collectives


class Replica:
    """One rank's replica of a model, and the flat gradients of it."""

    def __init__(self, model: nn.Module, group: Collectives) -> None:
        self.model = model
        self._group = group
        self._parameters: list[nn.Parameter] = []
        self._flats: list[torch.Tensor] = []
        self._views: list[torch.Tensor] = []

    def align(self) -> None:
        """Make parameters and buffers equal to rank 0's."""
        for tensor in [*self.model.parameters(), *self.model.buffers()]:
            data = tensor.detach()
            whole = data.contiguous()
            # As bytes: gloo does not know every type.
            self._group.broadcast_(whole.reshape(-1).view(torch.uint8))
            if whole.data_ptr() != data.data_ptr():
                data.copy_(whole)

    def begin_step(self) -> None:
        """Zero the gradients and put the views back in case somebody took them away (zero_grad does).

        What is trained may change from step to step: parameters frozen, unfrozen or replaced, on all ranks alike.
        """
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        if [id(parameter) for parameter in trained] != [id(parameter) for parameter in self._parameters]:
            self._lay_out(trained)
        for flat in self._flats:
            flat.zero_()
        for parameter, view in zip(self._parameters, self._views, strict=True):
            parameter.grad = view

    def reduce(self) -> None:
        """Sum the gradients over all ranks. Raises PeerLost."""
        for parameter, view in zip(self._parameters, self._views, strict=True):
            if parameter.grad is not view:
                # The job replaced the gradient; what it holds now is what it meant.
                if parameter.grad is None:
                    view.zero_()
                else:
                    view.copy_(parameter.grad)
                parameter.grad = view
        for flat in self._flats:
            self._group.sum_(flat)

    def scale_(self, factor: float) -> None:
        """Multiply all gradients."""
        for flat in self._flats:
            flat.mul_(factor)

    def _lay_out(self, trained: list[nn.Parameter]) -> None:
        kept = {id(parameter) for parameter in trained}
        for parameter in self._parameters:
            if id(parameter) not in kept:
                parameter.grad = None  # a zero gradient would still let weight decay and momentum move it
        self._parameters = trained
        self._flats = []
        self._views = [torch.empty(0)] * len(trained)
        kinds = {(p.dtype, p.device) for p in trained}
        for dtype, device in sorted(kinds, key=str):
            members = [n for n, p in enumerate(self._parameters) if (p.dtype, p.device) == (dtype, device)]
            flat = torch.zeros(sum(self._parameters[n].numel() for n in members), dtype=dtype, device=device)
            at = 0
            for n in members:
                parameter = self._parameters[n]
                self._views[n] = flat[at : at + parameter.numel()].view(parameter.shape)
                at += parameter.numel()
            self._flats.append(flat)
