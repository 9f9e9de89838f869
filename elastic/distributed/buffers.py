"""Buffers that a forward pass changes: they would remember who ran which micro-batch, so exact numerics refuse them."""

from __future__ import annotations

from torch import nn

from elastic.errors import UsageError

Marks = dict[str, tuple[int, int]]
"""Name of each buffer that is saved -> which tensor it is, and how often that was written to."""


def marks_of(model: nn.Module) -> Marks:
    """The present state of the buffers that a checkpoint would hold; caches are left out."""
    buffers = dict(model.named_buffers())
    saved = model.state_dict(keep_vars=True).keys() if buffers else ()
    return {name: (id(buffer), buffer._version) for name, buffer in buffers.items() if name in saved}


def refuse_changed(before: Marks, model: nn.Module) -> None:
    """Compare with what `marks_of` saw before the step's first forward pass.

    Raises:
        UsageError: a forward pass has changed a buffer.
    """
    after = marks_of(model)
    changed = [name for name, mark in before.items() if after.get(name, mark) != mark]
    if not changed:
        return
    owner = type(model.get_submodule(changed[0].rpartition(".")[0])).__name__
    raise UsageError(
        f"a forward pass changes the buffer {changed[0]} of {owner}"
        + (f" and {len(changed) - 1} others" if changed[1:] else "")
        + "; each worker would see other micro-batches, so that it would depend on the world size "
        "(training.numerics is exact). Use GroupNorm or LayerNorm, freeze it with eval() after train(), or make "
        "BatchNorm with track_running_stats=False; or give training.numerics: plain"
    )
