"""Undealing: takes off a model's modules what `fully_shard` put there, so that it can be dealt out over another world.

torch has no way back. What it changes is known from its source, and a test compares the modules before and after: the
class in front of each unit's own, a few attributes, hooks (told by where their code lies, since some come with the
first forward pass only), and a list of the modules it has seen. Modules stay the objects that they are. Parameters do
not: they are new ones, those that were dealt out without values.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed import _composable_state
from torch.distributed.tensor import DTensor

_OWNER = "torch.distributed.fsdp"


class Dealing:
    """Around one dealing out of a model: made before it, `dealt` after it, `undo` at its end."""

    def __init__(self, model: nn.Module) -> None:
        """Look at the model before anything was done to it."""
        self._model = model
        self._before = [(module, type(module), frozenset(vars(module))) for module in model.modules()]
        self._added: list[tuple[nn.Module, type, frozenset[str]]] = []
        self.parameters: dict[str, nn.Parameter] = {}
        """By each name: what the model's parameters are between two passes."""

    def dealt(self) -> None:
        """See what was done."""
        self._added = [(module, kind, frozenset(vars(module)) - names) for module, kind, names in self._before]
        self._before = []
        self.parameters = dict(self._model.named_parameters(remove_duplicate=False))

    def undo(self, *, device: str) -> None:
        """Take it off again, whatever a pass that was broken off has left. For `device` see `renew`."""
        for module, kind, names in self._added:
            module.__class__ = kind
            for name in names & vars(module).keys():
                delattr(module, name)
            _drop_hooks(module)
            _composable_state._module_state_mapping.pop(module, None)
        renew(self._model, self.parameters, device=device)


def renew(model: nn.Module, parameters: dict[str, nn.Parameter], *, device: str = "meta") -> None:
    """Put a new parameter in the place of each: without whatever hangs on the old ones, hooks for instance.

    One that is whole keeps its memory; one that is dealt out becomes a whole one on a device, with any values.
    `parameters`: the present ones by each of their names; ties stay ties.
    """
    renewed: dict[int, nn.Parameter] = {}
    for name, old in parameters.items():
        if id(old) not in renewed:
            data = torch.empty(old.shape, dtype=old.dtype, device=device) if isinstance(old, DTensor) else old.detach()
            renewed[id(old)] = nn.Parameter(data, requires_grad=old.requires_grad)
        owner, _, own = name.rpartition(".")
        model.get_submodule(owner).register_parameter(own, renewed[id(old)])


def give_memory(model: nn.Module, *, device: str) -> None:
    """Give parameters that have no memory some, with any values; leave everything else."""

    def real(tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor, device=device) if tensor.is_meta else tensor

    apply: Callable[[Callable[[Tensor], Tensor]], nn.Module] = model._apply
    apply(real)


def _drop_hooks(module: nn.Module) -> None:
    hooks = [each for name, each in vars(module).items() if "_hooks" in name and isinstance(each, dict)]
    ours = {key for each in hooks for key, hook in each.items() if _owner(hook).startswith(_OWNER)}
    for each in hooks:
        for key in ours & each.keys():
            del each[key]


def _owner(hook: object) -> str:
    return str(getattr(hook, "__module__", ""))
