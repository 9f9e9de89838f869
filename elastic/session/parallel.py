"""How a session lays its models out on the ranks, and what may be tracked beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from elastic.config.choices import Numerics, StrategyKind
from elastic.config.model import Settings
from elastic.distributed.dealing import Dealt
from elastic.distributed.group import Collectives
from elastic.distributed.replicate import Replica
from elastic.distributed.strategy import Strategy
from elastic.errors import UsageError
from elastic.world import World


def lay_out(model: nn.Module, settings: Settings, *, world: World, group: Collectives, align: bool = True) -> Strategy:
    """Put a model on the ranks as training.strategy says; equal to rank 0's, unless its values come later."""
    exact = settings.training.numerics is Numerics.EXACT
    if settings.training.strategy is StrategyKind.FSDP2:
        return Dealt(model, group, exact=exact, device=world.device, at_once=align)
    strategy = Replica(model, group, exact=exact)
    if align:
        strategy.align()
    return strategy


def check_tracked(name: str, value: Any, strategies: Sequence[Strategy]) -> None:
    """See whether an object can be saved and restored, and used with these strategies.

    Raises:
        UsageError: it cannot; the message says why.
    """
    if not (hasattr(value, "state_dict") and hasattr(value, "load_state_dict")):
        raise UsageError(f"track({name}=…) got a {type(value).__name__}; it needs state_dict() and load_state_dict()")
    if isinstance(value, torch.amp.GradScaler) and any(each.deals for each in strategies):
        raise UsageError(
            f"track({name}=…): a GradScaler looks at this rank's gradients only, so that ranks would differ in "
            "which steps they skip; with training.strategy: fsdp2 use bfloat16, which needs none"
        )
