"""A state with everything that is awkward to store, and a bit-by-bit comparison of two such states."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.complex64, torch.complex128, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)


class Awkward(nn.Module):
    """Shapes that divide by nothing, no rows, no dimensions, odd strides, every type, ties and buffers."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        make = torch.Generator().manual_seed(seed)
        self.embed = nn.Parameter(torch.randn(7, 3, generator=make))
        self.scale = nn.Parameter(torch.randn((), generator=make))
        self.no_rows = nn.Parameter(torch.zeros(0, 5))
        self.turned = nn.Parameter(torch.randn(5, 3, generator=make).t())
        self.conv = nn.Parameter(torch.randn(2, 3, 5, 7, generator=make).to(memory_format=torch.channels_last))
        self.shuffled = nn.Parameter(torch.randn(2, 3, 4, generator=make).permute(2, 0, 1))
        self.low = nn.Parameter(torch.randn(11, generator=make).to(torch.bfloat16))
        self.frozen = nn.Parameter(torch.randn(3, generator=make), requires_grad=False)
        self.head = nn.Linear(3, 7, bias=False)
        self.head.weight = self.embed
        for dtype in DTYPES:
            raw = torch.randint(0, 2 if dtype is torch.bool else 256, (48,), generator=make, dtype=torch.uint8)
            self.register_buffer(f"of_{str(dtype)[6:]}", (raw if dtype is not torch.bool else raw.bool()).view(dtype))
        self.register_buffer("wide", torch.randn(3, 1, generator=make).expand(3, 4))
        self.register_buffer("every_other", torch.randn(4, 6, generator=make)[:, ::2])
        self.register_buffer("scratch", torch.randn(2, generator=make), persistent=False)

    def loss(self, step: int) -> torch.Tensor:
        x = torch.full((2, 3), 0.1 * (step + 1))
        y = self.head(torch.tanh(x @ self.turned[:, :3])) @ self.embed * self.scale
        return y.sum() + self.conv.square().sum() + self.shuffled.abs().sum() + self.low.float().square().sum()


class Masters(torch.optim.Optimizer):
    """SGD on float32 copies of the parameters, as mixed precision keeps them; its state is theirs."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.reload_main_params_from_model()

    def reload_main_params_from_model(self) -> None:
        for each in self._all():
            self.state[each]["main_param"] = each.detach().float().clone()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    master = self.state[each]["main_param"]
                    master -= group["lr"] * each.grad.float()
                    each.copy_(master)

    def _all(self) -> list[torch.Tensor]:
        return [each for group in self.param_groups for each in group["params"]]


def make_awkward(seed: int) -> dict[str, Any]:
    """Tracked objects: the model, two optimizers that share it, a schedule, a gradient scaler."""
    model = Awkward(seed)
    groups = [
        {"params": [model.embed, model.turned], "lr": 1e-2},
        {"params": [model.conv, model.scale, model.no_rows, model.frozen], "weight_decay": 0.0, "betas": (0.8, 0.9)},
    ]
    optimizer = torch.optim.AdamW(groups, amsgrad=True)
    return {
        "model": model,
        "optimizer": optimizer,
        "masters": Masters([model.low, model.shuffled]),
        "schedule": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=9),
        "scaler": torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2),
    }


def train(tracked: dict[str, Any], first: int, steps: int = 1) -> None:
    """Steps that depend on their number only."""
    scaler = tracked["scaler"]
    for step in range(first, first + steps):
        scaler.scale(tracked["model"].loss(step)).backward()
        for name in ("optimizer", "masters"):
            scaler.step(tracked[name])
            tracked[name].zero_grad()
        scaler.update()
        tracked["schedule"].step()


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Names of what is not the same in every bit, type and (where memory is dense) stride."""
    a, b = _flat(one), _flat(other)
    return sorted({name for name in a.keys() | b.keys() if a.get(name, "absent") != b.get(name, "absent")})


def _flat(tracked: dict[str, Any]) -> dict[str, Any]:
    model = tracked["model"]
    found = {name: _bits(each) for name, each in model.state_dict().items()}
    names = {id(each): name for name, each in model.named_parameters()}
    for key in ("optimizer", "masters"):
        for parameter, entries in tracked[key].state.items():
            for entry, value in entries.items():
                found[f"{key}.{entry}.{names[id(parameter)]}"] = _bits(torch.as_tensor(value))
        for at, group in enumerate(tracked[key].param_groups):
            members = [names[id(each)] for each in group["params"]]
            found[f"{key}.group.{at}"] = repr([members, {k: v for k, v in group.items() if k != "params"}])
    for key in ("schedule", "scaler"):
        found[key] = repr(tracked[key].state_dict())
    return found


def _bits(tensor: torch.Tensor) -> tuple[Any, ...]:
    dense = tensor.detach().contiguous().reshape(-1)
    return str(tensor.dtype), tuple(tensor.shape), tuple(tensor.stride()), dense.view(torch.uint8).numpy().tobytes()
