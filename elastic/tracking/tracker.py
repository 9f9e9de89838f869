"""Tracker: the hook behind which a tracking tool is, and what it is told of the run that it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """Which run it is. `name` is the same after every restart; `directory` is where local files belong.

    `settings` are the run's own, flat, as section.field.
    """

    name: str
    project: str
    directory: str
    settings: Mapping[str, str | int | float | bool]


class Tracker(Protocol):
    """One tool. Used from one thread, in the worker of rank 0; what it raises ends the tracking, not the training."""

    def begin(self, samples: int) -> int:
        """The run goes on from here. Up to how many samples there are points that stay; later ones are wanted."""
        ...

    def log(self, values: Mapping[str, float], *, samples: int) -> None:
        """One point of several curves. `samples` only grows, from the one of the last `begin` on."""
        ...

    def close(self) -> None:
        """Nothing more follows from this process."""
        ...


Open = Callable[[TrackedRun], Tracker]
"""What a `module:name` of settings stands for: it opens the run's tracker, a new run or the one there is."""
