"""Elastic training that survives: public names, loaded on first use.

Importing this package must stay free of torch: torchrun loads the rendezvous plug-in while torch itself is
half imported, and the command line must start fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastic.data.mixed import MixedDataset as MixedDataset
    from elastic.data.stream import ShardStream as ShardStream
    from elastic.job import Evaluation as Evaluation
    from elastic.job import Job as Job
    from elastic.session import Session as Session
    from elastic.session import Step as Step
    from elastic.world import World as World

__version__ = "0.1.0"

_HOMES = {
    "Evaluation": "elastic.job",
    "Job": "elastic.job",
    "MixedDataset": "elastic.data.mixed",
    "Session": "elastic.session",
    "ShardStream": "elastic.data.stream",
    "Step": "elastic.session",
    "World": "elastic.world",
}
__all__ = ["Evaluation", "Job", "MixedDataset", "Session", "ShardStream", "Step", "World", "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'elastic' has no attribute {name!r}; it has {', '.join(__all__)}")
