"""Moving: a batch's tensors to the device that computes."""

from __future__ import annotations

from typing import Any

import torch


def to_device(batch: Any, device: str) -> Any:
    """Move the tensors of a batch to a device: nested in tuples, lists and dicts, or in what has a `to` of its own."""
    if device == "cpu":
        return batch
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        moved = [to_device(value, device) for value in batch]
        return type(batch)(*moved) if hasattr(batch, "_fields") else type(batch)(moved)  # a named tuple takes fields
    return batch.to(device) if hasattr(batch, "to") else batch
