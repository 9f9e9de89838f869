"""When to save, what to keep, where to restore from: pure decisions, each with its reason."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from elastic.checkpoint.layout import CommitRecord, Health

EXPLODED = 10.0
"""A loss this many times its running median is no normal one."""
EXPLODED_NORM = 100.0
"""The same of a gradient norm, which leaps further: one hard sample raises it tenfold, and clipping undoes that."""
FEWEST_LOSSES = 8
"""With fewer earlier losses there is no median to speak of."""


@dataclass(frozen=True, kw_only=True)
class SaveVerdict:
    """Whether to save now."""

    due: bool
    reason: str


@dataclass(frozen=True, kw_only=True)
class Signs:
    """What is known of a run's health at a step. None, and no losses: unknown."""

    loss: float | None = None
    earlier_losses: Sequence[float] = ()
    """Losses of the steps before it, in any order; those not finite count for nothing."""
    grad_norm: float | None = None
    """Before clipping."""
    earlier_grad_norms: Sequence[float] = ()
    """Those that were measured in steps before it."""


@dataclass(frozen=True, kw_only=True)
class HealthVerdict:
    """Whether a state is fit to go on from; None: nothing is known."""

    status: Health | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class Found:
    """An iteration as it lies in a root, judged by its manifest and by file sizes only."""

    place: str
    """Name of its directory."""
    iteration: int
    problem: str | None = None
    """Why it cannot be used; None where every file is there in full length."""
    lineage: str | None = None
    """None where we did not write it."""
    generation: int = 0
    consumed_samples: int = 0
    manifest_digest: str | None = None
    ancestors: tuple[str, ...] = ()
    """Digests of what was committed on the way to it."""
    ckpt_status: int | None = None
    """Health as saved: 0 normal, 1 abnormal, None unknown."""
    aside: bool = False
    """Set aside or on the way to deletion: it counts only if it is the very one that was committed."""

    @property
    def unhealthy(self) -> bool:
        """Whether it was marked abnormal. Unknown is not abnormal."""
        return self.ckpt_status == Health.ABNORMAL


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An iteration to restore from, and why it stands where it stands in the order."""

    found: Found
    reason: str
    adopt: bool = False
    """It is complete but was not committed yet: whoever restores it commits it first."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Candidates, best first, and what was passed over and why."""

    candidates: tuple[Candidate, ...]
    passed: tuple[Candidate, ...]


@dataclass(frozen=True, kw_only=True)
class Retention:
    """What to delete; `reason` says what stays and why."""

    delete: tuple[Found, ...]
    reason: str


def save_due(
    iteration: int, *, enable_save: bool, every_steps: int, last_saved: int | None, failed_at: int | None = None,
    failures: int = 0, counted: range | None = None, by_distance: bool = False,
) -> SaveVerdict:  # fmt: skip
    """Whether the step just taken is to be followed by a save: a multiple of `every_steps`.

    `by_distance`: so many steps after the last one instead, for a distance that changes.

    `counted`: the steps that it counts for where steps differ in size (none, or several at once); else just itself.

    After `failures` saves in a row that failed, the last one at `failed_at`, it is tried again 1, 2, 4, ... steps on.
    """
    if not enable_save:
        return SaveVerdict(due=False, reason="saving is off (enable_save)")
    if iteration <= 0:
        return SaveVerdict(due=False, reason="no step was taken yet")
    if iteration == last_saved:
        return SaveVerdict(due=False, reason=f"iteration {iteration} is saved already")
    if failed_at is not None and iteration - failed_at >= min(every_steps, 1 << max(0, failures - 1)):
        return SaveVerdict(due=True, reason=f"the save of iteration {failed_at} failed: it is tried again")
    if by_distance:
        distance = iteration - (last_saved or 0)
        reason = f"iteration {iteration} is {distance} steps after the last save, of {every_steps}"
        return SaveVerdict(due=distance >= every_steps, reason=reason)
    own = range(iteration, iteration + 1) if counted is None else counted
    named = f"iteration {iteration}" if counted is None else f"step {own.stop - 1}"
    if (own.stop - 1) // every_steps == (own.start - 1) // every_steps:
        return SaveVerdict(due=False, reason=f"{named} is no multiple of {every_steps}")
    return SaveVerdict(due=True, reason=f"{named} is a multiple of {every_steps}, or the first behind one")


def judge_health(signs: Signs) -> HealthVerdict:
    """Abnormal: loss or gradient norm is not finite, or far above its running median (EXPLODED, EXPLODED_NORM)."""
    known = [
        ("the loss", signs.loss, signs.earlier_losses, EXPLODED),
        ("the gradient norm", signs.grad_norm, signs.earlier_grad_norms, EXPLODED_NORM),
    ]
    reasons = []
    for name, value, earlier, most in known:
        if value is None:
            continue
        if not math.isfinite(value):
            return HealthVerdict(status=Health.ABNORMAL, reason=f"{name} is {value}")
        finite = [each for each in earlier if math.isfinite(each)]
        if len(finite) < FEWEST_LOSSES:
            reasons.append(f"{name} is finite; only {len(finite)} came before it")
            continue
        median = statistics.median(finite)
        if 0 < median * most < value:  # a loss that may be negative has no such scale
            reason = f"{name} is {value:g}, more than {most:g} times its running median {median:g}"
            return HealthVerdict(status=Health.ABNORMAL, reason=reason)
        reasons.append(f"{name} is {value:g}, its running median {median:g}")
    if not reasons:
        return HealthVerdict(status=None, reason="neither loss nor gradient norm is known")
    return HealthVerdict(status=Health.NORMAL, reason="; ".join(reasons))


def candidates(
    record: CommitRecord | None, *, tracker: int | None, found: Sequence[Found], lineage: str | None = None,
    generation: int | None = None, load_unhealthy: bool = False,
) -> Choice:  # fmt: skip
    """Put what was found in the order in which to try to restore it.

    With a commit record: the very iteration that it names, then older ones that led to it, newest first; what is
    newer, or not named by its manifest, was never committed. Without one: what the tracker names, then the newest
    of the lineage (`lineage`, or the newest there is where that is unknown).

    `generation`: that of who restores, if it may adopt: what was saved completely on the ground of the committed one,
    by a generation that died before its commit, then comes first. What is marked unhealthy is passed over.
    """
    choice = _by_record(record, found, generation) if record else _by_tracker(tracker, found, lineage, generation)
    if load_unhealthy:
        return choice
    fault = "it is marked unhealthy (ckpt_status 1); checkpoint.load_unhealthy: true would take it all the same"
    return Choice(
        candidates=tuple(each for each in choice.candidates if not each.found.unhealthy),
        passed=(
            *choice.passed,
            *(Candidate(found=each.found, reason=fault) for each in choice.candidates if each.found.unhealthy),
        ),
    )


def _by_record(record: CommitRecord, found: Sequence[Found], generation: int | None) -> Choice:
    # What the committed manifest does not name was published, perhaps, but not committed on the way to it.
    chains = [set(each.ancestors) for each in found if each.manifest_digest == record.manifest_digest]
    adopted = _newest_first([each for each in found if _adoptable(each, record, generation)])
    reason = f"it was complete, and goes on from the committed iteration {record.iteration}"
    first = [Candidate(found=each, reason=reason, adopt=True) for each in adopted]
    committed: list[Candidate] = []
    older: list[Found] = []
    passed: list[Candidate] = []
    for each in (each for each in found if each not in adopted):
        named = each.manifest_digest == record.manifest_digest
        if each.problem is None and named:
            committed.append(Candidate(found=each, reason=f"iteration {record.iteration} is the committed one"))
        elif each.aside:
            continue
        elif (fault := _fault_by_record(each, record, *chains[:1])) is not None:
            passed.append(Candidate(found=each, reason=fault))
        else:
            older.append(each)
    reason = f"newest complete one before the committed iteration {record.iteration}"
    rest = [Candidate(found=each, reason=reason) for each in _newest_first(older)]
    return Choice(candidates=(*first, *committed[:1], *rest), passed=tuple(passed))


def _adoptable(each: Found, record: CommitRecord, generation: int | None) -> bool:
    """Whether it is the next save after the committed one, made by those who came before us and after the record.

    The record bears the generation that restored from it last: what an older one saves after that comes too late.
    """
    if generation is None or each.problem is not None or each.aside or each.lineage != record.lineage:
        return False
    return (
        each.ancestors[-1:] == (record.manifest_digest,)
        and each.consumed_samples > record.consumed_samples
        and each.iteration > record.iteration
        and record.generation <= each.generation <= generation
    )


def _fault_by_record(each: Found, record: CommitRecord, chain: set[str] | None = None) -> str | None:
    if each.problem is not None:
        return each.problem
    if each.lineage != record.lineage:
        return _strange(each, record.lineage)
    if each.iteration > record.iteration or each.consumed_samples > record.consumed_samples:
        return f"it is newer than the committed iteration {record.iteration}: it was never committed"
    if each.iteration == record.iteration:
        return "its manifest is not the one that was committed"
    if chain is not None and each.manifest_digest not in chain:
        return f"it is not one of those that led to the committed iteration {record.iteration}: it was never committed"
    return None


def _by_tracker(tracker: int | None, found: Sequence[Found], lineage: str | None, generation: int | None) -> Choice:
    in_place = [each for each in found if not each.aside]
    usable = [each for each in in_place if each.problem is None]
    passed = [Candidate(found=each, reason=each.problem) for each in in_place if each.problem is not None]
    tracked = next((each for each in usable if each.iteration == tracker), None)
    if lineage is None and usable:
        newest = max(usable, key=lambda each: (each.generation, each.consumed_samples, each.iteration))
        lineage = (tracked or newest).lineage
    kin = _newest_first([each for each in usable if each.lineage == lineage])
    passed += [Candidate(found=each, reason=_strange(each, lineage)) for each in usable if each.lineage != lineage]
    if tracked is None or tracked not in kin:
        rest = [Candidate(found=each, reason="newest complete one of the lineage") for each in kin]
        return Choice(candidates=tuple(rest), passed=tuple(passed))
    # A tracker that was not moved, or in which a bit was: nobody meant to go back where a later save goes on from it.
    later = [each for each in kin if tracked.manifest_digest in each.ancestors]
    reason = f"it goes on from iteration {tracker}, and the tracker, which names that one, is behind"
    adopted = [Candidate(found=each, reason=reason, adopt=True) for each in later if generation is not None]
    hint = f", though iteration {later[0].iteration} goes on from it" if later and not adopted else ""
    adopted.append(Candidate(found=tracked, reason=f"the tracker names it{hint}"))
    taken = [each.found for each in adopted]
    rest = [Candidate(found=each, reason="newest complete one of the lineage") for each in kin if each not in taken]
    return Choice(candidates=(*adopted, *rest), passed=tuple(passed))


def retention(
    found: Sequence[Found], *, save_max: int, committed: int, lineage: str, protected: Collection[int] = (),
    keep_every_steps: int = 0,
) -> Retention:  # fmt: skip
    """Choose what to delete after `committed` was committed: all but the newest `save_max` of the lineage.

    Never the committed one, nor a protected one (the last verified, what the tracker names), nor one that is newer
    than the committed one, nor one whose manifest does not show that we wrote it, nor the newest that is not marked
    unhealthy, nor a multiple of `keep_every_steps` (0: none), which is kept besides. Damaged ones fill no place, nor
    do those that did not lead to the committed one.
    """
    safe = {committed, *protected}
    ours = [each for each in found if each.lineage == lineage and not each.aside and each.iteration <= committed]
    chain = {name for each in ours if each.iteration == committed for name in each.ancestors}
    whole = _newest_first([each for each in ours if each.problem is None and _led_to(each, committed, chain)])
    marked = {each.iteration for each in whole if keep_every_steps and each.iteration % keep_every_steps == 0}
    healthy = [each.iteration for each in whole if not each.unhealthy]
    newest = [each.iteration for each in whole if each.iteration not in marked][:save_max]
    kept = {*newest, *healthy[:1], *marked, *safe}
    oldest_kept = min({*newest, *safe})
    delete = [each for each in whole if each.iteration not in kept]
    delete += [each for each in ours if each not in whole and each.iteration < oldest_kept]
    names = ", ".join(str(each) for each in sorted(kept & {each.iteration for each in ours}))
    every = f", keep_every_steps {keep_every_steps}" if keep_every_steps else ""
    return Retention(
        delete=tuple(sorted(delete, key=lambda each: each.iteration)),
        reason=f"save_max {save_max}{every}, iteration {committed} committed: {names or 'nothing'} stays",
    )


def _strange(each: Found, lineage: str | None) -> str:
    return f"it is of lineage {each.lineage or 'unknown (no elastic.json)'}, wanted is {lineage or 'one without'}"


def _led_to(each: Found, committed: int, chain: set[str]) -> bool:
    return each.iteration == committed or not chain or each.manifest_digest in chain


def _newest_first(found: Sequence[Found]) -> list[Found]:
    return sorted(found, key=lambda each: (each.consumed_samples, each.iteration), reverse=True)
