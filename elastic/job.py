"""Job: the functions that a user supplies, and how `module:name` is turned into them.

Nothing here is built until we call it with the world that there is then. So nothing that a user writes can hold a
stale world, and a new world needs no new process.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from elastic.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from elastic.config.model import Settings
    from elastic.world import World

    Measure = Callable[[nn.Module, Any], Mapping[str, tuple[Tensor | float, Tensor | float]]]
    Loss = Callable[[nn.Module, Any], Tensor | tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What to measure while training, and how often."""

    dataset: Callable[[], Any]
    """Builds a map-style data set; each of its items is measured once, at any world size."""
    measure: Measure
    """Of the model and one batch: name -> (sum over its samples, weight), as with losses."""
    every_samples: int
    """Measured by each step that reaches a multiple of it: at the same places at any batch size."""
    collate: Callable[[list[Any]], Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to train, as functions. The same first weights must come out on every rank: seed before building.

    On a node that comes to others at work model, optimizer and data are built before it has a place. Where one of these
    functions asks for rank or size then, they are called once more, in a new process, when there is one.
    """

    model: Callable[[World], nn.Module]
    """Builds the model; we move it to the world's device."""
    dataset: Callable[[], Any]
    """Builds the data, the same on every rank: map-style (`__getitem__`, `__len__`), MixedDataset or ShardStream."""
    loss: Loss
    """Of the model and one batch: one number for each sample, shape [n]; or (sum, weight), two scalars."""
    optimizer: Callable[[nn.Module], Optimizer]
    """Builds the optimizer of the model."""
    schedule: Callable[[int], float] | None = None
    """Learning-rate factor of a step, from the samples consumed once it is done. It multiplies the first rates."""
    max_grad_norm: float | None = None
    """Gradients longer than this are shortened to it; None: never."""
    collate: Callable[[list[Any]], Any] | None = None
    """Makes a batch of a list of items; None: torch's default_collate."""
    evaluation: Evaluation | None = None
    """What to measure while training; the results are events. None: nothing."""
    until: int | None = None
    """Steps of the run; None: what the settings say."""


def load_job(target: str, settings: Settings) -> Job:
    """The job that `module:name` names: a Job, or a function that makes one from the settings.

    Raises:
        UsageError: the target is not written so, cannot be imported, or is no job.
    """
    module_name, colon, name = target.partition(":")
    if not (module_name and colon and name.isidentifier()):
        raise UsageError(f"a job is named as module:name, like jobs.pretrain_lm:job; got {target!r}")
    found = _attribute(_import(module_name), name, target=target)
    job = found(settings) if callable(found) and not isinstance(found, type) else found
    if not isinstance(job, Job):
        made = "returned" if job is not found else "is"
        wanted = "an elastic.Job, or a function of the settings that returns one"
        raise UsageError(f"{target} {made} {_described(job)}; expected {wanted}")
    return job


def _import(module_name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(missing + "."):
            raise UsageError(
                f"there is no module {missing!r} to take the job from; start in the directory that holds it, "
                "or put that directory on PYTHONPATH"
            ) from error
        raise UsageError(
            f"the job's module {module_name!r} imports {missing!r}, which is not installed here"
        ) from error


def _attribute(module: ModuleType, name: str, *, target: str) -> Any:
    if hasattr(module, name):
        return getattr(module, name)
    jobs = sorted(key for key, value in vars(module).items() if isinstance(value, Job))
    candidates = [key for key in vars(module) if not key.startswith("_")]
    close = difflib.get_close_matches(name, candidates, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"its jobs: {', '.join(jobs) or 'none'}"
    raise UsageError(f"{target}: the module {module.__name__} has no {name!r}; {hint}")


def _described(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"of type {type(value).__name__}"
