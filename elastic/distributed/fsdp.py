"""The FSDP2 strategy: every rank holds a part of each parameter, of its gradient and of the optimizer's state.

Parameters come together for one unit's forward and backward at a time (torch's `fully_shard`); gradients are summed
and dealt out, without a division: that by the global weight comes later, as with replicas. What `fully_shard` cannot
deal out (no dimensions, no elements, odd strides, another type than its unit's) stays replicated.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from elastic.distributed.group import Collectives
from elastic.distributed.peers import peer_errors
from elastic.distributed.replicate import Replica
from elastic.distributed.undealing import Dealing, give_memory
from elastic.plan.tree import Spread

ELEMENTWISE = {
    *(optim.Adam, optim.AdamW, optim.SGD, optim.Adagrad, optim.Adadelta, optim.Adamax, optim.NAdam, optim.RAdam),
    *(optim.RMSprop, optim.Rprop, optim.ASGD),
}
"""Optimizers that treat each element by itself, so that they may work on the parts as on plain tensors: their first
step on DTensors costs half a second. Exact types: a subclass may do otherwise."""
_TYPES = {torch.float32, torch.float64, torch.float16, torch.bfloat16}


class Sharded:
    """One rank's part of a model."""

    lockstep = True
    overlap = False

    def __init__(
        self, model: nn.Module, group: Collectives, *, device: str = "cpu", units: Sequence[nn.Module] | None = None
    ) -> None:
        """Deal out the model, which has the same values on all ranks, or none (on meta) until they are restored.

        `units`: what is brought together at a time; None: `units_of`.
        """
        self._dealing = Dealing(model)
        mesh = init_device_mesh(torch.device(device).type, (group.size,))
        units = units_of(model) if units is None else units
        left: set[nn.Parameter] = set()
        for unit in (*units, model):
            others = {id(each) for other in units if other is not unit for each in other.parameters()}
            left |= not_dealt([each for each in unit.parameters() if id(each) not in others])
        for unit in (*units, model):
            fully_shard(unit, mesh=mesh, ignored_params=left)
        for part in model.modules():
            if isinstance(part, FSDPModule):
                part.set_gradient_divide_factor(1.0)
                part.set_force_sum_reduction_for_comms(True)
        give_memory(model, device=device)
        self.model = model
        self._group = group
        self._computing = False
        # What lies outside of the units stays together after a forward pass, for the backward that follows in a round.
        self._hook = model.register_forward_hook(self._after_forward)
        self._rest = Replica(nn.ParameterList([each for each in model.parameters() if each in left]), group)
        self._dealing.dealt()

    def undo(self, *, device: str = "meta") -> dict[str, nn.Parameter]:
        """Make it an ordinary model again, whose parameters are on a device and of no value where they were dealt out.

        From any place of a step, also one that was broken off. This is of no use any more then. Returns the parameters
        that the model had, by each of their names.
        """
        self._hook.remove()
        self._dealing.undo(device=device)
        return self._dealing.parameters

    def begin_step(self, spread: Spread) -> None:
        """Drop the gradients of the step before."""
        self._computing = False
        self._deal()
        for parameter in self._dealt():
            parameter.grad = None
        self._rest.begin_step(spread)

    def begin_round(self, slot: int, *, last: bool) -> None:
        """Gradients are summed over ranks in the last round only; until then each rank adds up its own."""
        self._rest.begin_round(slot, last=False)
        self.begin_stand_in(last=last)

    def begin_stand_in(self, *, last: bool) -> None:
        """The same without a slot; what it adds is zero."""
        model: Any = self.model
        self._computing = True
        model.set_requires_gradient_sync(last)
        model.set_is_last_backward(last)

    def send(self) -> None:
        """Send what is replicated; the last backward has summed the rest. Raises PeerLost."""
        self._rest.send()

    def reduce(self) -> None:
        """Wait for the sums. What got no gradient gets zeros, as replicas have them. Raises PeerLost."""
        self._rest.reduce()
        self._computing = False
        for parameter in self._dealt():
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    @torch.no_grad()
    def scale_(self, factor: float) -> None:
        """Multiply all gradients."""
        self._rest.scale_(factor)
        for gradient in self._gradients():
            gradient.mul_(factor)

    @torch.no_grad()
    def grad_norm(self) -> float:
        """Length of all gradients together. Raises PeerLost."""
        lengths = [torch.linalg.vector_norm(each, dtype=torch.float64) for each in self._gradients() if each.numel()]
        square = sum((each.cpu().square() for each in lengths), start=torch.zeros((), dtype=torch.float64))
        with peer_errors("measuring gradients"):
            self._group.sum_(square)
        return math.hypot(float(square.sqrt()), self._rest.grad_norm())

    def _after_forward(self, *_: Any) -> None:
        """A forward pass that no backward follows, as of an evaluation, must leave the parts in their places."""
        if not (self._computing and torch.is_grad_enabled()):
            self._deal()

    def _deal(self) -> None:
        for part in self.model.modules():
            if isinstance(part, FSDPModule):
                part.reshard()

    def _dealt(self) -> Iterator[nn.Parameter]:
        return (each for each in self.model.parameters() if isinstance(each, DTensor))

    def _gradients(self) -> Iterator[Tensor]:
        return (local(each.grad) for each in self._dealt() if each.grad is not None)


def adopt(optimizer: Optimizer) -> None:
    """Let an elementwise optimizer work on plain local parts, others on DTensors."""
    if type(optimizer) in ELEMENTWISE:
        optimizer.register_step_pre_hook(_to_parts)
        optimizer.register_step_post_hook(_to_wholes)
    else:
        optimizer.register_step_pre_hook(_state_to_wholes)


def units_of(model: nn.Module) -> list[nn.Module]:
    """What is worth bringing together on its own: the elements of the outermost module lists, blocks as a rule.

    One that shares a parameter with another part of the model is left to the whole.
    """
    found: list[nn.Module] = []

    def look(module: nn.Module) -> None:
        for child in module.children():
            if isinstance(module, nn.ModuleList) and not isinstance(child, nn.ModuleList | nn.ModuleDict):
                found.append(child)
            else:
                look(child)

    look(model)
    uses = Counter(id(each) for _, each in _all_uses(model))
    return [unit for unit in found if _is_apart(unit, uses)]


def not_dealt(parameters: Iterable[nn.Parameter]) -> set[nn.Parameter]:
    """Those of one unit's parameters that `fully_shard` cannot deal out with the others of it."""
    plain = [each for each in parameters if each.dim() and each.numel() and each.is_contiguous()]
    sizes: Counter[torch.dtype] = Counter()
    for each in plain:
        if each.dtype in _TYPES:
            sizes[each.dtype] += each.numel()
    best = max(sizes, key=lambda dtype: (sizes[dtype], str(dtype)), default=None)
    kept = {id(each) for each in plain if each.dtype == best}
    return {each for each in parameters if id(each) not in kept}


@torch.no_grad()
def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, sharing its memory; a plain tensor is its own."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _all_uses(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return module.named_parameters(remove_duplicate=False)


def _is_apart(unit: nn.Module, uses: Counter[int]) -> bool:
    own = Counter(id(each) for _, each in _all_uses(unit))
    return bool(own) and all(uses[each] == count for each, count in own.items())


def _to_parts(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    """Before a step: plain parts take the place of the parameters, with their gradients and state."""
    for group in optimizer.param_groups:
        for at, parameter in enumerate(group["params"]):
            if isinstance(parameter, DTensor):
                part = local(parameter).detach()
                part.grad = None if parameter.grad is None else local(parameter.grad)
                part.whole = parameter  # type: ignore[attr-defined]
                if parameter in optimizer.state:
                    state = optimizer.state.pop(parameter)
                    optimizer.state[part] = {key: _local_value(value) for key, value in state.items()}
                group["params"][at] = part


def _to_wholes(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    """After a step: the parameters themselves again, with the new state."""
    for group in optimizer.param_groups:
        for at, part in enumerate(group["params"]):
            if (parameter := getattr(part, "whole", None)) is not None:
                if part in optimizer.state:
                    optimizer.state[parameter] = optimizer.state.pop(part)
                group["params"][at] = parameter


def _state_to_wholes(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    """Before a step on DTensors: what a restore put there as this rank's part becomes a DTensor, too."""
    for parameter, state in optimizer.state.items():
        if isinstance(parameter, DTensor):
            shape = local(parameter).shape
            for key, value in state.items():
                if isinstance(value, Tensor) and not isinstance(value, DTensor) and value.shape == shape:
                    state[key] = DTensor.from_local(
                        value,
                        parameter.device_mesh,
                        parameter.placements,
                        run_check=False,
                        shape=parameter.shape,
                        stride=parameter.stride(),
                    )


def _local_value(value: Any) -> Any:
    return local(value) if isinstance(value, Tensor) else value
