"""Random number generators of one rank <-> tensors, named `rng.<rank>.<kind>`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

PREFIX = "rng."
_STEP_BYTES = 8192
"""No state of numpy's default generator or of `random` is longer: 625 numbers of ten digits and what stands between."""


def capture_rng(rank: int) -> dict[str, Tensor]:
    """The state of every generator in use in this process: torch, CUDA, numpy, random."""
    states = {"torch": torch.get_rng_state()}
    # The CUDA lines here and in `apply_rng` are untested: no GPU was at hand.
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state()
    if (numpy := sys.modules.get("numpy")) is not None:
        states["numpy"] = _to_tensor(numpy.random.get_state())
    if (random := sys.modules.get("random")) is not None:
        states["random"] = _to_tensor(random.getstate())
    return {f"{PREFIX}{rank}.{kind}": state for kind, state in states.items()}


def apply_rng(tensors: Mapping[str, Tensor], *, rank: int) -> bool:
    """Put back what was captured for this rank; False where there is nothing for it (the world was smaller)."""
    head = f"{PREFIX}{rank}."
    states = {name.removeprefix(head): state for name, state in tensors.items() if name.startswith(head)}
    if "torch" in states:
        torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    if "numpy" in states and (numpy := sys.modules.get("numpy")) is not None:
        state = _from_tensor(states["numpy"])
        numpy.random.set_state(tuple(state) if isinstance(state, list) else state)  # another generator's is a dict
    if "random" in states and (random := sys.modules.get("random")) is not None:
        version, keys, gauss = _from_tensor(states["random"])
        random.setstate((version, tuple(keys), gauss))
    return bool(states)


def _to_tensor(state: Any) -> Tensor:
    """Filled up with spaces: numbers are now longer, now shorter, and an arena keeps its layout only where no tensor
    changes its size."""
    text = json.dumps(state, default=lambda array: array.tolist()).encode()
    return torch.frombuffer(bytearray(text.ljust(-(-len(text) // _STEP_BYTES) * _STEP_BYTES)), dtype=torch.uint8)


def _from_tensor(tensor: Tensor) -> Any:
    return json.loads(bytes(tensor.tolist()))
