"""Where a start restores from: one decision on rank 0, by metadata, told to all ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from elastic.checkpoint.layout import CommitRecord, parse_iteration_dir
from elastic.checkpoint.policy import Candidate, Choice, Found, candidates
from elastic.checkpoint.root import RootIdentity
from elastic.checkpoint.seams import Settings
from elastic.checkpoint.storage import Storage
from elastic.checkpoint.survey import Survey, judge, survey
from elastic.errors import NewestElsewhere, NothingToRestore, RunMismatch, StateElsewhere


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One directory to try, and why."""

    directory: str
    iteration: int
    manifest_digest: str | None
    """None where another system wrote it."""
    reason: str
    adopt: bool = False
    """It is complete but not committed: it counts once it is."""
    back: bool = False
    """It is older than what was committed last, which is not here, or damaged here."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to try, in order; nothing to try where the run begins, or where all of it is `missing`."""

    attempts: tuple[Attempt, ...]
    passed: tuple[Attempt, ...]
    """Passed over before anything was read; `reason` is the fault."""
    own: bool
    """Whether it is this run's own save_path, and not load_path."""
    weights_only: bool
    reason: str
    missing: str = ""
    """What to say where a copy in memory does not help either: nothing of what was committed is here."""
    others_may_hold: bool = False
    """Whether nodes that are not here may hold what is lacking or turns out to be damaged here."""

    def to_plain(self) -> dict[str, Any]:
        """JSON types only."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Plan:
        """Read back what `to_plain` made."""
        lists = {name: tuple(Attempt(**each) for each in plain[name]) for name in ("attempts", "passed")}
        return cls(**(plain | lists))


def plan_restore(
    settings: Settings, *, identity: RootIdentity | None, record: CommitRecord | None, storage: Storage,
    generation: int | None = None, seen: Survey | None = None, others_may_hold: bool = False,
) -> Plan:  # fmt: skip
    """Decide what this start restores: the run's own last state, else checkpoint_path or load_path, else nothing.

    `generation`: that of this start, if it may adopt what an earlier one left complete. `seen`: what lies in
    save_path, where that is more than what this node's directory holds. `others_may_hold`: there may be more of it on
    nodes that are not here.

    Raises:
        NothingToRestore: something should be there and is not; never answered with random weights.
        RunMismatch: the commit record is of another lineage than the root; StateElsewhere: others may hold its files.
    """
    if identity is not None:
        seen = seen or survey(settings.save_path, storage=storage)
        if (plan := _own(settings, identity, record, seen, generation, others_may_hold)) is not None:
            return plan
    if settings.checkpoint_path:
        return _explicit(settings, storage)
    if settings.load_path:
        return _loaded(settings, storage)
    return Plan(attempts=(), passed=(), own=True, weights_only=False, reason="the run begins: nothing was saved yet")


def _own(
    settings: Settings, identity: RootIdentity, record: CommitRecord | None, seen: Survey, generation: int | None,
    others_may_hold: bool,
) -> Plan | None:  # fmt: skip
    root = settings.save_path
    if record is not None and record.lineage != identity.lineage:
        raise (StateElsewhere if others_may_hold else RunMismatch)(
            f"{root} is of lineage {identity.lineage}, but what this job committed last (iteration "
            f"{record.iteration}) is of {record.lineage}: its files are elsewhere or gone. To continue it, set "
            "checkpoint.save_path to where they are; to begin another run, use another --rdzv-id."
        )
    # A directory whose manifest cannot be read may be ours: a run that may have state never begins anew.
    ours = [each for each in seen.in_place if each.lineage in (identity.lineage, None)]
    if record is None and not ours and seen.tracker.iteration is None:
        return None
    choice = candidates(
        record,
        tracker=seen.tracker.iteration,
        found=seen.found,
        lineage=identity.lineage,
        generation=generation,
        load_unhealthy=settings.load_unhealthy,
    )
    if not choice.candidates:
        committed = f"iteration {record.iteration} was committed" if record is not None else seen.tracker.reason
        missing = (
            f"{root}: {committed}, but nothing there can be restored{_faults(choice)}. Bring the files back; "
            "or begin a new run with another checkpoint.save_path (and another --rdzv-id)."
        )
        if record is None:
            raise NothingToRestore(missing)
        plan = Plan(attempts=(), passed=(), own=True, weights_only=False, reason="nothing is on disk")
        return replace(plan, missing=missing, others_may_hold=others_may_hold)
    plan = _plan(root, choice, own=True, weights_only=False, reason=seen.tracker.reason)
    if record is None:
        return plan
    digest = record.manifest_digest
    if any(each.found.manifest_digest == digest and each.found.problem is None for each in choice.passed):
        return plan  # it is here, and not wanted
    attempts = tuple(replace(each, back=not each.adopt and each.manifest_digest != digest) for each in plan.attempts)
    return replace(plan, attempts=attempts, others_may_hold=others_may_hold)


def going_back(plan: Plan, attempt: Attempt, faults: Sequence[str]) -> str:
    """What to tell where this goes back behind what was committed last. `faults`: of earlier attempts.

    Raises:
        NewestElsewhere: others may hold that.
    """
    what = f"{attempt.directory} is older than what was committed last, which is not here"
    what += f" or damaged ({'; '.join(faults)})" if faults else ""
    if plan.others_may_hold:
        raise NewestElsewhere(f"{what}: nodes that were there then may hold it")
    return f"{what}: the run goes back"


def nothing_left(plan: Plan, faults: Sequence[str]) -> NothingToRestore:
    """The error for that; where others may hold a whole copy, they are worth waiting for. `faults`: of each attempt."""
    return (StateElsewhere if plan.others_may_hold else NothingToRestore)(
        plan.missing
        or f"every iteration there is damaged. {'; '.join(faults)}. Bring the files back from a copy; to begin a new "
        "run, use another checkpoint.save_path and an empty load_path."
    )


def _explicit(settings: Settings, storage: Storage) -> Plan:
    """The one directory that was named: no tracker is asked, and nothing else will do."""
    path = settings.checkpoint_path.rstrip("/") or "/"
    root, place = os.path.split(path)
    found = judge(root, place, iteration=parse_iteration_dir(place), storage=storage)
    choice = candidates(None, tracker=None, found=(found,), load_unhealthy=settings.load_unhealthy)
    if not choice.candidates:
        raise NothingToRestore(
            f"checkpoint.checkpoint_path {path} cannot be restored: {choice.passed[0].reason}. Name the directory of "
            "one iteration, or use checkpoint.load_path with the root that holds several."
        )
    return _plan(root, choice, own=False, weights_only=settings.no_load_optim, reason="checkpoint_path names it")


def _loaded(settings: Settings, storage: Storage) -> Plan:
    path = root = settings.load_path.rstrip("/") or "/"
    hint = "Name a directory that holds iteration_* directories, or one of these."
    if os.path.abspath(path) == os.path.abspath(settings.save_path or os.devnull):
        hint = "Leave load_path empty: restarts restore from save_path by themselves."
    if not storage.names(path):
        raise NothingToRestore(f"checkpoint.load_path {path} does not exist or is empty. {hint}")
    seen = survey(path, storage=storage)
    if not seen.in_place:
        # It may also be one iteration's directory, under whatever name.
        root, place = os.path.split(path)
        seen = Survey(tracker=seen.tracker, found=(judge(root, place, iteration=None, storage=storage),))
    choice = candidates(None, tracker=seen.tracker.iteration, found=seen.found, load_unhealthy=settings.load_unhealthy)
    if not choice.candidates:
        raise NothingToRestore(
            f"checkpoint.load_path {path} holds nothing that can be restored{_faults(choice)}; "
            f"{seen.tracker.reason}. {hint}"
        )
    return _plan(root, choice, own=False, weights_only=settings.no_load_optim, reason=seen.tracker.reason)


def _plan(root: str, choice: Choice, *, own: bool, weights_only: bool, reason: str) -> Plan:
    return Plan(
        attempts=_attempts(root, choice.candidates),
        passed=_attempts(root, choice.passed),
        own=own,
        weights_only=weights_only,
        reason=reason,
    )


def _attempts(root: str, found: Sequence[Candidate]) -> tuple[Attempt, ...]:
    return tuple(
        Attempt(
            directory=os.path.join(root, each.found.place),
            iteration=each.found.iteration,
            manifest_digest=each.found.manifest_digest,
            reason=each.reason,
            adopt=each.adopt,
        )
        for each in found
    )


def _faults(choice: Choice) -> str:
    faults = "; ".join(f"{each.found.place}: {each.reason}" for each in choice.passed[-4:])
    return f" ({faults})" if faults else ""


def newer_than(seen: Survey, *, iteration: int, lineage: str) -> tuple[Found, ...]:
    """Complete iterations of ours beyond the one restored: states that led nowhere, to be set aside."""
    return tuple(
        each
        for each in seen.in_place
        if each.iteration > iteration and each.lineage == lineage and each.problem is None
    )
