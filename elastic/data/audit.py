"""Audit: was every sample used once in what led to the final parameters? Proved from the event files, or denied.

A step is proved by ranges where every rank told which samples it fetched. Where a rank's word is missing, because its
node died just then, the survivors' records hold the sums over all ranks: their digest, compared with the one that the
order gives for the step's span, proves the step too. Whatever is not proved is counted as such.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from elastic.data.digest import RUN_DIGEST_START, chain, skip_digest, step_digest
from elastic.data.lineage import Lineage, StepSeen, trace
from elastic.events import Record
from elastic.plan.data_order import SampleOrder

Interval = tuple[int, int]
_MAX_PROBLEMS = 20


@dataclass(frozen=True, kw_only=True)
class Account:
    """The sample account of a run. `samples` counts distinct samples used; recomputed work is not in it."""

    first_sample: int
    """Where the events begin: 0 unless the run started from another run's checkpoint."""
    steps: int
    samples: int
    used_twice: int
    never_used: int
    recomputed_steps: int
    recomputed_samples: int
    skipped_steps: int
    skipped_samples: int
    """Passed over because a policy wanted it; neither used nor missing."""
    proved_by_ranges_steps: int
    proved_by_digest_steps: int
    unproved_steps: int
    problems: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Every sample once, all of it proved, and at least one step to prove."""
        wrong = self.used_twice or self.never_used or self.unproved_steps or self.problems
        return self.steps > 0 and not wrong


@dataclass(frozen=True, kw_only=True)
class _Verdict:
    proof: str  # "ranges", "digest", "policy" for samples passed over, or "" for none
    used: tuple[Interval, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SavedState:
    """What the newest checkpoint of a run says of itself."""

    iteration: int
    consumed_samples: int
    run_digest: int


def account(records: Iterable[Record], *, order: SampleOrder | None, saved: SavedState | None = None) -> Account:
    """Check the events of a run. Records of one rank must come as they were written; all else in any order.

    With `order`, every step's digest is computed anew and compared; without, a step with a missing rank is unproved.
    With `saved`, a finished run's last checkpoint must hold the digest of the very steps that the events tell.
    """
    lineage = trace(records)
    verdicts = [_judge(step, order) for step in lineage.steps]
    problems = list(lineage.problems)
    problems += _chain_problems(lineage)
    problems += _saved_problems(lineage, saved)
    problems += [problem for verdict in verdicts for problem in verdict.problems]
    end = max((step.any.stop for step in lineage.steps), default=lineage.first_sample)
    if lineage.finished_samples is not None and lineage.finished_samples != end:
        problems.append(f"the run says that it finished at sample {lineage.finished_samples}; its steps end at {end}")
    used = [interval for verdict in verdicts for interval in verdict.used]
    skipped = [(step.any.start, step.any.stop) for step in lineage.steps if step.any.skipped]
    skipped_samples = sum(stop - start for start, stop in skipped)
    end = max(end, lineage.finished_samples or 0)
    accounted, twice, never = _cover([*used, *skipped], first=lineage.first_sample, end=end)
    proofs = [verdict.proof for verdict in verdicts]
    return Account(
        first_sample=lineage.first_sample,
        steps=len(verdicts),
        samples=accounted - skipped_samples,
        used_twice=twice,
        never_used=never,
        recomputed_steps=len(lineage.recomputed),
        recomputed_samples=sum(step.any.stop - step.any.start for step in lineage.recomputed),
        skipped_steps=len(skipped),
        skipped_samples=skipped_samples,
        proved_by_ranges_steps=proofs.count("ranges"),
        proved_by_digest_steps=proofs.count("digest"),
        unproved_steps=proofs.count(""),
        problems=_shortened(problems),
    )


def _judge(step: StepSeen, order: SampleOrder | None) -> _Verdict:
    """One step: do its ranks agree, and do their samples make up its span?"""
    name, told = f"iteration {step.iteration}", step.any
    span = (told.start, told.stop)
    if told.skipped:
        return _judge_skipped(step)
    used = tuple(sorted(part for event in step.by_rank.values() for part in event.ranges if part[0] < part[1]))
    problems = _agreement_problems(step)
    missing = told.world_size - len(step.by_rank)
    if any(start < span[0] or stop > span[1] for start, stop in used):
        problems.append(f"{name}: samples {used} were used outside its span {span}")
    distinct, twice, never = _cover(used, first=span[0], end=span[1])
    if twice:
        problems.append(f"{name}: {twice} samples of {span} were used twice: ranges {used}")
    if never and missing <= 0:
        problems.append(f"{name}: {never} samples of {span} were never used: ranges {used}")
    if told.step_samples != span[1] - span[0]:
        problems.append(f"{name}: all ranks together used {told.step_samples} samples of its span {span}")
    if order is not None and told.step_digest != (expected := _expected_digest(span, order)):
        problems.append(f"{name}: digest {told.step_digest} of the samples used; the order gives {expected} for {span}")
    if problems:
        return _Verdict(proof="", used=used, problems=tuple(problems))
    if missing == 0 and distinct == span[1] - span[0]:
        return _Verdict(proof="ranges", used=used, problems=())
    proof = "digest" if order is not None else ""
    return _Verdict(proof=proof, used=(span,), problems=())


def _judge_skipped(step: StepSeen) -> _Verdict:
    """Samples passed over: all ranks must say so, and nobody may have used one."""
    name, told = f"iteration {step.iteration}", step.any
    problems = _agreement_problems(step)
    if any(event.ranges for event in step.by_rank.values()) or told.step_samples:
        problems.append(f"{name}: samples were used, though they are told to be skipped ({told.skipped})")
    if told.step_digest != skip_digest(told.start, told.stop):
        problems.append(f"{name}: digest {told.step_digest} is not the one of skipped samples")
    return _Verdict(proof="" if problems else "policy", used=(), problems=tuple(problems))


def _agreement_problems(step: StepSeen) -> list[str]:
    events = step.by_rank.values()
    name = f"iteration {step.iteration}"
    problems = [
        f"{name}: ranks disagree on {field}: {sorted({getattr(event, field) for event in events})}"
        for field in ("start", "stop", "step_samples", "step_digest", "run_digest", "world_size", "skipped")
        if len({getattr(event, field) for event in events}) > 1
    ]
    if (highest := max(step.by_rank)) >= step.any.world_size:
        problems.append(f"{name}: rank {highest} told of it, in a world of {step.any.world_size}")
    return problems


def _expected_digest(span: Interval, order: SampleOrder) -> int:
    return step_digest((sample, order.index(sample)) for sample in range(*span))


def _chain_problems(lineage: Lineage) -> list[str]:
    """Iterations must be consecutive, spans must join, and run digests must follow from one another."""
    problems = []
    iteration, stop = lineage.first_iteration, lineage.first_sample
    run_digest: int | None = RUN_DIGEST_START if iteration == 0 else None
    for step in lineage.steps:
        name, told = f"iteration {step.iteration}", step.any
        if step.iteration != iteration + 1:
            problems.append(f"{name} follows iteration {iteration}")
            run_digest = None
        if told.start != stop:
            problems.append(f"{name} starts at sample {told.start}; the one before stopped at {stop}")
        if told.stop <= told.start:
            problems.append(f"{name} used no samples: its span is {(told.start, told.stop)}")
        if run_digest is not None and told.run_digest != (expected := chain(run_digest, told.step_digest)):
            problems.append(f"{name}: run digest {told.run_digest} does not follow; it should be {expected}")
        iteration, stop, run_digest = step.iteration, told.stop, told.run_digest
    return problems


def _saved_problems(lineage: Lineage, saved: SavedState | None) -> list[str]:
    """Whether the parameters that were saved last are those that the steps told of led to."""
    if saved is None or lineage.finished_samples is None or not lineage.steps:
        return []
    name = f"the checkpoint of iteration {saved.iteration}"
    step = next((each for each in lineage.steps if each.iteration == saved.iteration), None)
    if step is None:
        return [f"{name} is saved, but no step of the lineage made it"]
    told = (step.any.stop, step.any.run_digest)
    found = (saved.consumed_samples, saved.run_digest)
    return [] if found == told else [f"{name} says (samples, digest) {found}; the steps that led to it make {told}"]


def _cover(intervals: Iterable[Interval], *, first: int, end: int) -> tuple[int, int, int]:
    """(samples used at least once, uses beyond the first of each sample, samples of first..end-1 never used)."""
    distinct = twice = never = 0
    reached = first
    for start, stop in sorted(intervals):
        never += max(0, start - reached)
        fresh = max(0, stop - max(start, reached))
        distinct += fresh
        twice += (stop - start) - fresh
        reached = max(reached, stop)
    return distinct, twice, never + max(0, end - reached)


def _shortened(problems: list[str]) -> tuple[str, ...]:
    if len(problems) <= _MAX_PROBLEMS:
        return tuple(problems)
    return (*problems[:_MAX_PROBLEMS], f"and {len(problems) - _MAX_PROBLEMS} more problems")
