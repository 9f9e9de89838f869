"""Curves: which points of a run's events a tracker is told, and that nothing is told twice or runs back. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from elastic.events import Evaluated, Event, Restored, StepCommitted


@dataclass(frozen=True, kw_only=True)
class Begin:
    """The run goes on from here."""

    samples: int


@dataclass(frozen=True, kw_only=True)
class Point:
    """Values of several curves at one number of samples."""

    samples: int
    values: Mapping[str, float]


class Curves:
    """Of each so many steps the last is told, as means since the one before."""

    def __init__(self, *, every_steps: int) -> None:
        self._every = every_steps
        self._losses: list[float] = []
        self._seconds: list[float] = []

    def take(self, event: Event) -> Begin | Point | None:
        """What to tell of an event of rank 0, if anything."""
        match event:
            case Restored():
                self._losses, self._seconds = [], []
                return Begin(samples=event.consumed_samples)
            case StepCommitted(skipped=""):
                return self._step(event)
            case Evaluated():
                values = {f"evaluation/{name}": value for name, value in event.values if math.isfinite(value)}
                return Point(samples=event.consumed_samples, values=values) if values else None
        return None

    def _step(self, event: StepCommitted) -> Point | None:
        self._losses.append(event.loss)
        self._seconds.append(event.seconds)
        if event.iteration % self._every:
            return None
        count = len(self._losses)
        values = {
            "loss": sum(self._losses) / count,
            "step_seconds": sum(self._seconds) / count,
            "world_size": float(event.world_size),
            "iteration": float(event.iteration),
        }
        self._losses, self._seconds = [], []
        return Point(samples=event.stop, values=values)
