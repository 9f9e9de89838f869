"""Lineage: which committed steps led to the present state, read from the events of all ranks and generations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from elastic.events import Record, Restored, RunFinished, StepCommitted, Unknown

Place = tuple[int, int]
"""(generation, start within it): a world of one that is started again keeps its generation's number."""


@dataclass(frozen=True, kw_only=True)
class StepSeen:
    """One step of one generation, with what each rank told of it."""

    place: Place
    iteration: int
    by_rank: dict[int, StepCommitted]

    @property
    def any(self) -> StepCommitted:
        """What some rank told: for the fields in which all must agree."""
        return next(iter(self.by_rank.values()))


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """The steps that count, in order; those done again later; and what contradicts itself."""

    first_iteration: int
    first_sample: int
    steps: tuple[StepSeen, ...]
    recomputed: tuple[StepSeen, ...]
    finished_samples: int | None
    """What the run's end was told to be, where it came."""
    problems: tuple[str, ...]


@dataclass(kw_only=True)
class _Generation:
    restored: list[Restored] = field(default_factory=list)
    steps: dict[int, dict[int, StepCommitted]] = field(default_factory=dict)


_COUNTED = frozenset({Restored.kind, StepCommitted.kind, RunFinished.kind})


def trace(records: Iterable[Record]) -> Lineage:
    """Follow the run through its generations: each goes on from what it restored, and drops what came after that."""
    generations, finished, problems = _sort_out(records)
    kept: dict[int, StepSeen] = {}
    recomputed: list[StepSeen] = []
    base = Restored(tier="none", iteration=0, consumed_samples=0, seconds=0.0, reason="")
    for number, place in enumerate(sorted(generations)):
        generation = generations[place]
        name = f"generation {place[0]}"
        if not generation.restored:
            problems.append(f"{name} committed steps, but no rank told what it had restored")
            continue
        start = generation.restored[0]
        if number == 0:
            base = start
        problems.extend(_restore_problems(name, generation.restored, kept, base))
        recomputed.extend(kept.pop(iteration) for iteration in sorted(kept) if iteration > start.iteration)
        for iteration, by_rank in sorted(generation.steps.items()):
            if iteration <= start.iteration:
                problems.append(f"{name} restored iteration {start.iteration}, yet committed iteration {iteration}")
            else:
                kept[iteration] = StepSeen(place=place, iteration=iteration, by_rank=by_rank)
    return Lineage(
        first_iteration=base.iteration,
        first_sample=base.consumed_samples,
        steps=tuple(kept[iteration] for iteration in sorted(kept)),
        recomputed=tuple(recomputed),
        finished_samples=finished,
        problems=tuple(problems),
    )


def _sort_out(records: Iterable[Record]) -> tuple[dict[Place, _Generation], int | None, list[str]]:
    generations: dict[Place, _Generation] = {}
    starts: dict[Place, int] = {}
    finished: int | None = None
    problems: list[str] = []
    for record in records:
        event, rank = record.event, record.rank
        if isinstance(event, RunFinished):
            finished = event.consumed_samples
        if isinstance(event, Unknown) and event.name in _COUNTED:
            problems.append(f"generation {record.generation}: a {event.name} of another version: {event.reason}")
        if rank is None or not isinstance(event, Restored | StepCommitted):
            continue
        if isinstance(event, Restored):
            starts[record.generation, rank] = starts.get((record.generation, rank), 0) + 1
        place = (record.generation, starts.get((record.generation, rank), 1))
        generation = generations.setdefault(place, _Generation())
        if isinstance(event, Restored):
            generation.restored.append(event)
        elif rank in (by_rank := generation.steps.setdefault(event.iteration, {})):
            problems.append(f"generation {place[0]}: rank {rank} committed iteration {event.iteration} twice")
        else:
            by_rank[rank] = event
    return generations, finished, problems


def _restore_problems(name: str, restored: list[Restored], kept: dict[int, StepSeen], base: Restored) -> list[str]:
    """What is wrong with where a generation says that it goes on from."""
    start = restored[0]
    places = {(event.iteration, event.consumed_samples) for event in restored}
    if len(places) > 1:
        return [f"{name}: ranks restored different states, (iteration, samples) {sorted(places)}"]
    if start.iteration == base.iteration:
        found, where = base.consumed_samples, "where the run began"
    elif start.iteration in kept:
        found, where = kept[start.iteration].any.stop, f"the end of iteration {start.iteration}"
    else:
        return [f"{name} restored iteration {start.iteration}, which no earlier generation committed"]
    if start.consumed_samples != found:
        return [f"{name} restored {start.consumed_samples} consumed samples; {where} is at {found}"]
    return []
