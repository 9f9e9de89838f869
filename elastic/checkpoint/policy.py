"""When to save, what to keep, where to restore from: pure decisions, each with its reason."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from elastic.checkpoint.layout import CommitRecord


@dataclass(frozen=True, kw_only=True)
class SaveVerdict:
    """Whether to save now."""

    due: bool
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
    aside: bool = False
    """Set aside: it counts only if it is the very one that was committed."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """An iteration to restore from, and why it stands where it stands in the order."""

    found: Found
    reason: str


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


def save_due(iteration: int, *, enable_save: bool, every_steps: int, last_saved: int | None) -> SaveVerdict:
    """Whether the step just taken is to be followed by a save."""
    if not enable_save:
        return SaveVerdict(due=False, reason="saving is off (enable_save)")
    if iteration <= 0:
        return SaveVerdict(due=False, reason="no step was taken yet")
    if iteration == last_saved:
        return SaveVerdict(due=False, reason=f"iteration {iteration} is saved already")
    if iteration % every_steps:
        return SaveVerdict(due=False, reason=f"iteration {iteration} is no multiple of {every_steps}")
    return SaveVerdict(due=True, reason=f"iteration {iteration} is a multiple of {every_steps}")


def candidates(
    record: CommitRecord | None, *, tracker: int | None, found: Sequence[Found], lineage: str | None = None
) -> Choice:
    """Put what was found in the order in which to try to restore it.

    With a commit record: the very iteration that it names, then older ones that led to it, newest first; what is
    newer, or not named by its manifest, was never committed. Without one: what the tracker names, then the newest
    of the lineage (`lineage`, or the newest there is where that is unknown).
    """
    return _by_record(record, found) if record is not None else _by_tracker(tracker, found, lineage)


def _by_record(record: CommitRecord, found: Sequence[Found]) -> Choice:
    # What the committed manifest does not name was published, perhaps, but not committed on the way to it.
    chains = [set(each.ancestors) for each in found if each.manifest_digest == record.manifest_digest]
    first: list[Candidate] = []
    older: list[Found] = []
    passed: list[Candidate] = []
    for each in found:
        committed = each.manifest_digest == record.manifest_digest
        if each.problem is None and committed:
            first.append(Candidate(found=each, reason=f"iteration {record.iteration} is the committed one"))
        elif each.aside:
            continue
        elif (fault := _fault_by_record(each, record, *chains[:1])) is not None:
            passed.append(Candidate(found=each, reason=fault))
        else:
            older.append(each)
    reason = f"newest complete one before the committed iteration {record.iteration}"
    rest = [Candidate(found=each, reason=reason) for each in _newest_first(older)]
    return Choice(candidates=(*first[:1], *rest), passed=tuple(passed))


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


def _by_tracker(tracker: int | None, found: Sequence[Found], lineage: str | None) -> Choice:
    in_place = [each for each in found if not each.aside]
    usable = [each for each in in_place if each.problem is None]
    passed = [Candidate(found=each, reason=each.problem) for each in in_place if each.problem is not None]
    tracked = next((each for each in usable if each.iteration == tracker), None)
    if lineage is None and usable:
        newest = max(usable, key=lambda each: (each.generation, each.consumed_samples, each.iteration))
        lineage = (tracked or newest).lineage
    kin = [each for each in usable if each.lineage == lineage]
    passed += [Candidate(found=each, reason=_strange(each, lineage)) for each in usable if each.lineage != lineage]
    first = [Candidate(found=each, reason="the tracker names it") for each in kin if each is tracked]
    rest = [
        Candidate(found=each, reason="newest complete one of the lineage")
        for each in _newest_first(kin)
        if each is not tracked
    ]
    return Choice(candidates=(*first, *rest), passed=tuple(passed))


def retention(
    found: Sequence[Found], *, save_max: int, committed: int, lineage: str, protected: Collection[int] = ()
) -> Retention:
    """Choose what to delete after `committed` was committed: all but the newest `save_max` of the lineage.

    Never the committed one, nor a protected one (the last verified, what the tracker names), nor one that is newer
    than the committed one, nor one whose manifest does not show that we wrote it. Damaged ones fill no place, nor do
    those that did not lead to the committed one.
    """
    safe = {committed, *protected}
    ours = [each for each in found if each.lineage == lineage and not each.aside and each.iteration <= committed]
    chain = {name for each in ours if each.iteration == committed for name in each.ancestors}
    whole = _newest_first([each for each in ours if each.problem is None and _led_to(each, committed, chain)])
    kept = {each.iteration for each in whole[:save_max]} | safe
    oldest_kept = min(kept)
    delete = [each for each in whole if each.iteration not in kept]
    delete += [each for each in ours if each not in whole and each.iteration < oldest_kept]
    names = ", ".join(str(each) for each in sorted(kept & {each.iteration for each in ours}))
    return Retention(
        delete=tuple(sorted(delete, key=lambda each: each.iteration)),
        reason=f"save_max {save_max}, iteration {committed} committed: {names or 'nothing'} stays",
    )


def _strange(each: Found, lineage: str | None) -> str:
    return f"it is of lineage {each.lineage or 'unknown (no elastic.json)'}, wanted is {lineage or 'one without'}"


def _led_to(each: Found, committed: int, chain: set[str]) -> bool:
    return each.iteration == committed or not chain or each.manifest_digest in chain


def _newest_first(found: Sequence[Found]) -> list[Found]:
    return sorted(found, key=lambda each: (each.consumed_samples, each.iteration), reverse=True)
