"""Teardown: take down torch's groups so that this process can join another one as if it were the first."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d


def destroy(*, excepthook: Callable[..., Any]) -> None:
    """Take down whatever there is, so that the next group begins as the first did on every rank. Never raises."""
    if dist.is_initialized():
        with contextlib.suppress(Exception):  # whatever it says, this process is through with the group
            dist.destroy_process_group()
    _forget_layouts()
    # An attempt that failed has counted, too, and a group is found in the store by its number.
    distributed_c10d._world.group_count = 0
    # torch puts a hook around the one before for each group, so that they would pile up.
    if getattr(sys.excepthook, "__module__", "") == distributed_c10d.__name__:
        sys.excepthook = excepthook


def _forget_layouts() -> None:
    """DTensor remembers what each operation gave, with its mesh and that one's group: an equal mesh of the next group
    would be answered with it, and its sockets would stay."""
    tensor: Any = sys.modules.get("torch.distributed.tensor")
    if tensor is None:
        return
    with contextlib.suppress(AttributeError):  # another torch may keep them elsewhere
        tensor.DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()
        torch._C._clear_DTensor_sharding_propagator_cache()  # the same once more, in C++
