"""How often to save: measured costs and failures of a run, and the interval that loses least. Decisions are pure.

The interval is that of J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
Future Generation Computer Systems 22 (2006) 303-312, eq. 37, which for cheap saves is J. W. Young's sqrt(2 d M),
"A first order approximation to the optimum checkpoint interval", Communications of the ACM 17 (1974) 530-531.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from elastic.events import (
    Cause,
    CheckpointSaved,
    Record,
    Recovered,
    Restored,
    StepCommitted,
    WorldFormed,
    decode,
)

RECENT_BYTES = 8 << 20
"""So much of the end of each file of events is looked at."""
_FAULTS = {
    Cause.NODE_LOST,
    Cause.WORKER_EXIT,
    Cause.WORKER_SIGNAL,
    Cause.WORKER_HUNG,
    Cause.PEER_LOST,
    Cause.GROUP_FAILED,
}
_BEFORE_S = 3600.0
"""One failure in this time is reckoned with besides those seen: a young run has seen too little to go by."""
_MOST_OF_TIME = 0.1
"""However often a run fails: no more than this share of it is spent saving."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What was measured of a run, in seconds. None: not seen."""

    save_s: float | None
    """How long training waits for a save."""
    durable_s: float | None
    """How long it takes until that is durable; no interval is shorter."""
    restore_s: float | None
    """From a fault to the next step; where there was none yet, how long reading the state took."""
    step_s: float | None
    observed_s: float
    """Time in which steps were taken."""
    failures: int
    """Faults that ended a generation in that time."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """How often to save, and what that costs. None: it cannot be said."""

    interval_s: float | None
    every_steps: int | None
    lost_share: float | None
    """Share of the time expected to be lost at that interval: saving, computing again, coming back."""
    lost_share_now: float | None
    """The same at the interval so far."""
    reason: str


def advise(costs: Costs, *, every_steps: int | None, mean_time_s: float | None = None) -> Advice:
    """The interval that loses least.

    Args:
        every_steps: the interval so far, in steps; None: unknown.
        mean_time_s: mean time between failures, if known better than from what was observed.
    """
    if costs.save_s is None or costs.step_s is None or costs.step_s <= 0:
        lacking = "save" if costs.save_s is None else "step"
        return _silent(f"no {lacking} was seen yet")
    between_s, known = _mean_time(costs, mean_time_s)
    wait_s = max(costs.save_s, 1e-9)
    best_s = max(optimum_s(wait_s, mean_time_s=between_s), wait_s / _MOST_OF_TIME, costs.durable_s or 0.0)
    steps = max(1, round(best_s / costs.step_s))
    restore_s, step_s = costs.restore_s or 0.0, costs.step_s

    def lost(count: int) -> float:
        return lost_share(count * step_s, wait_s=wait_s, restore_s=restore_s, mean_time_s=between_s)

    return Advice(
        interval_s=best_s,
        every_steps=steps,
        lost_share=lost(steps),
        lost_share_now=None if every_steps is None else lost(every_steps),
        reason=f"a save takes {wait_s:.3g} s, a step {costs.step_s:.3g} s, and {known}",
    )


def optimum_s(wait_s: float, *, mean_time_s: float) -> float:
    """Time of work between two saves, for saves that take `wait_s`."""
    if wait_s >= 2 * mean_time_s:
        return mean_time_s
    ratio = wait_s / (2 * mean_time_s)
    return math.sqrt(2 * wait_s * mean_time_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - wait_s


def lost_share(interval_s: float, *, wait_s: float, restore_s: float, mean_time_s: float) -> float:
    """Share of the time that is not spent on steps that count, if failures come at random (Daly's eq. 20)."""
    try:
        spent = math.exp(restore_s / mean_time_s) * math.expm1((interval_s + wait_s) / mean_time_s)
    except OverflowError:
        return 1.0
    return 1 - interval_s / (mean_time_s * spent)


def next_steps(advice: Advice, *, every_steps: int) -> int:
    """The interval to go on with: unchanged where the advice is none, or within a fifth; at most 4 times as long."""
    if advice.every_steps is None or 0.8 * every_steps <= advice.every_steps <= 1.2 * every_steps:
        return every_steps
    return min(advice.every_steps, 4 * every_steps)


def measure(records: Iterable[Record]) -> Costs:
    """What events tell of a run's costs and faults."""
    saves: list[float] = []
    durable: list[float] = []
    restores: list[float] = []
    recoveries: list[float] = []
    steps: list[float] = []
    spans: dict[int, tuple[float, float]] = {}
    faults: set[int] = set()
    for record in records:
        match record.event:
            case CheckpointSaved(tier="disk", seconds=seconds, stall_s=stall_s):
                saves.append(stall_s or seconds)
                durable.append(seconds)
            case Restored(tier=tier, seconds=seconds) if tier != "none":
                restores.append(seconds)
            case Recovered(seconds=seconds):
                recoveries.append(seconds)
            case WorldFormed(cause=cause) if cause in _FAULTS:
                faults.add(record.generation)
            case StepCommitted(seconds=seconds):
                steps.append(seconds)
                first, last = spans.get(record.generation, (record.time_s, record.time_s))
                spans[record.generation] = (min(first, record.time_s), max(last, record.time_s))
    return Costs(
        save_s=_median(saves),
        durable_s=_median(durable),
        restore_s=_median(recoveries) or _median(restores),
        step_s=_median(steps),
        observed_s=sum(last - first for first, last in spans.values()),
        failures=len(faults),
    )


def usual_distance(records: Iterable[Record]) -> int | None:
    """Steps from one save to the next, as they mostly were; None with fewer than two saves."""
    events = [record.event for record in records if isinstance(record.event, CheckpointSaved)]
    saved = sorted({event.iteration for event in events if event.tier == "disk"})
    distances = [later - earlier for earlier, later in itertools.pairwise(saved)]
    return statistics.mode(distances) if distances else None


def recent_records(directory: Path, *, most_bytes: int = RECENT_BYTES) -> list[Record]:
    """The last records of each node's file of events; lines that cannot be read are left out."""
    records = []
    for path in sorted(directory.glob("*.jsonl")):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - most_bytes))
            lines = file.read(most_bytes).decode(errors="replace").splitlines()
        for line in lines:
            try:
                records.append(decode(line))
            except ValueError:
                continue  # cut at its beginning, or still being written
    return records


def _mean_time(costs: Costs, told_s: float | None) -> tuple[float, str]:
    if told_s is not None:
        return told_s, f"failures are told to come every {_hours(told_s)}"
    between_s = (costs.observed_s + _BEFORE_S) / (costs.failures + 1)
    seen = f"{costs.failures} failures in {_hours(costs.observed_s)}"
    return between_s, f"{seen}, with one in {_hours(_BEFORE_S)} taken for granted, are one every {_hours(between_s)}"


def _silent(reason: str) -> Advice:
    return Advice(interval_s=None, every_steps=None, lost_share=None, lost_share_now=None, reason=reason)


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds:.3g} s"
