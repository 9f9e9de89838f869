"""Teardown: take down torch's groups so that this process can join another one as if it were the first."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d


def destroy(*, excepthook: Callable[..., Any]) -> None:
    """Take down whatever there is, so that the next group begins as the first did on every rank. Never raises."""
    if dist.is_initialized():
        with contextlib.suppress(Exception):  # whatever it says, this process is through with the group
            dist.destroy_process_group()
    # An attempt that failed has counted, too, and a group is found in the store by its number.
    distributed_c10d._world.group_count = 0
    # torch puts a hook around the one before for each group, so that they would pile up.
    if getattr(sys.excepthook, "__module__", "") == distributed_c10d.__name__:
        sys.excepthook = excepthook
