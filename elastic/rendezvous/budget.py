"""Budget: which failures may go on being survived. Only failing without progress ends a job.

Pure. A lost node, joins and leaves are always free. Every other end of a generation spends from the bucket of its
reason; getting past the step that failed refills them all. Exceptions, exits and signals are a worker's own: the same
step failing again and again is a verdict of its own, and if only one agent's workers do so it is left out instead.
Hangs are judged so, too, but by themselves: a step that failed twice and hung once has not failed three times.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from elastic.errors import ExitCode, Lack
from elastic.events import Cause
from elastic.rendezvous.model import Barred, Bucket, Failure, FailureReport

_OWN = frozenset({Bucket.EXCEPTION, Bucket.EXIT, Bucket.SIGNAL, Bucket.HANG})
# The world tells them to everyone. More say nothing new: a bug fails on all nodes alike.
_MOST_OF_A_GENERATION = 16
# A worker that ends so has said that starting it again cannot help.
_FINAL = frozenset({ExitCode.USAGE, ExitCode.FENCED})
_WHY = {
    Lack.NEWEST: "what was committed last is on none of these nodes",
    Lack.ALL: "what was committed is on none of these nodes",
}
_CLOSED_BY = {
    Cause.WORKER_SIGNAL: Bucket.SIGNAL,
    Cause.WORKER_HUNG: Bucket.HANG,
    Cause.GROUP_FAILED: Bucket.GROUP,
    Cause.PEER_LOST: Bucket.PEER,
}


@dataclass(frozen=True, kw_only=True)
class Reported:
    """What an agent says ended its generation."""

    agent: str
    node: str
    report: FailureReport


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What the failures so far amount to. `exit_code` is set where the job is over; `text` is then its last word.

    `alone`: the job is over only if it cannot do without this agent, see `without`. `lacks`: only if nobody comes who
    holds that, see `despite`; not where that was so too often in a row, and is `spent`.
    """

    history: tuple[Failure, ...]
    exit_code: int | None
    reason: str
    text: str = ""
    alone: Barred | None = None
    lacks: Lack = Lack.NOTHING
    spent: bool = False

    def despite(self) -> Judgement:
        """The same where it is tried again: nothing was wrong with those that failed."""
        return Judgement(history=self.history, exit_code=None, reason=f"tried again: {self.reason}")

    def without(self) -> Judgement:
        """The same after leaving out the agent that failed alone: its failures go with it."""
        assert self.alone is not None  # asked by who looked
        history = tuple(failure for failure in self.history if failure.agent != self.alone.agent)
        return Judgement(history=history, exit_code=None, reason=self.alone.reason)


def judge(
    history: tuple[Failure, ...],
    *,
    generation: int,
    reports: Sequence[Reported],
    no_progress_limit: int,
    bucket_limit: int = 10,
    whole: bool = False,
    barred: Sequence[Barred] = (),
    needed: bool = False,
) -> Judgement:
    """Judge the reports that ended `generation`, after the failures of earlier ones.

    Args:
        history: failures since the run last got past a step that failed.
        whole: every member of that generation is back, none is gone, left, late or cut off. Only then does a lost peer
            or a group that did not form count: else that is explained.
        barred: agents left out before; a failure that goes on at that step on another node is the job's, one that comes
            again with a new agent of the same node bars that one at once.
        needed: min nodes are not met without the agent that failed alone, so it is tried again like any other.
    """
    reports = [one for one in reports if not _is_of_others(one.report, generation=generation)]
    own = [one for one in reports if _bucket(one.report) in _OWN]
    for one in own:
        if one.report.exit_code in _FINAL and (needed or not one.report.node_local):
            code = one.report.exit_code
            reason = f"worker {one.report.rank} ended with exit code {code}: starting it again cannot help"
            return Judgement(history=history, exit_code=code, reason=reason, text=one.report.text)
    if not own and (lacking := [one for one in reports if one.report.lacks]):
        return _lacking(history, generation=generation, reports=lacking, limit=bucket_limit)
    history = _extend(history, generation=generation, reports=own or (_shared(reports) if whole else []))
    root = own[0] if own else (reports[0] if reports and whole else None)
    if root is None:
        return Judgement(history=history, exit_code=None, reason="nothing counts against the budget")
    if own and (known := _known(history, own=own, barred=barred, needed=needed)) is not None:
        return known
    judgement = _weigh(
        history, root=root, needed=needed, no_progress_limit=no_progress_limit, bucket_limit=bucket_limit
    )
    if judgement.exit_code is None or not own:
        return judgement
    return _blame(judgement, own=own)


def left(
    history: Sequence[Failure], *, no_progress_limit: int, bucket_limit: int
) -> tuple[tuple[tuple[str, int, int], ...], int]:
    """What is left of each budget after these failures, as (reason, left, of how many), and the step to get past."""
    spent = {
        "worker": (_OWN - {Bucket.HANG}, no_progress_limit),
        "hang": (frozenset({Bucket.HANG}), no_progress_limit),
        "group": (frozenset({Bucket.GROUP}), bucket_limit),
        "peer": (frozenset({Bucket.PEER}), bucket_limit),
    }
    rows = tuple(
        (reason, max(0, most - len(_generations(one for one in history if one.bucket in buckets))), most)
        for reason, (buckets, most) in spent.items()
    )
    return rows, max((failure.step for failure in history), default=0)


def _is_of_others(report: FailureReport, *, generation: int) -> bool:
    """Whether it says what the members of an earlier generation lacked: it may be here by now."""
    return bool(report.lacks) and report.generation not in (0, generation)


def _lacking(history: tuple[Failure, ...], *, generation: int, reports: Sequence[Reported], limit: int) -> Judgement:
    """None of these nodes holds what was committed. It counts only in a row: outages of all nodes may be far apart."""
    history, report = _extend(history, generation=generation, reports=reports), reports[0].report
    known, tries = {each.generation for each in history if each.bucket is Bucket.STATE}, 0
    while generation - tries in known:
        tries += 1
    reason = f"worker {report.rank} ended with exit code {report.exit_code}: {_WHY[report.lacks]}"
    if tries >= limit:
        reason += f", {tries} generations in a row"
    return Judgement(
        history=history,
        exit_code=report.exit_code or int(ExitCode.USAGE),
        reason=reason,
        text=report.text,
        lacks=report.lacks,
        spent=tries >= limit,
    )


def _known(
    history: tuple[Failure, ...], *, own: Sequence[Reported], barred: Sequence[Barred], needed: bool
) -> Judgement | None:
    """What it means that this failure had an agent barred before; None where none had, or where it must be weighed."""
    root, signature, step = own[0], own[0].report.signature, own[0].report.step
    before = [entry for entry in barred if entry.signature == signature]
    # Once the run has got past that step, the same failure elsewhere is another one.
    if moved := next((entry for entry in before if entry.node != root.node and step <= entry.step), None):
        reason = f"{signature} on {root.node}, as before on {moved.node}, which was left out: no node's own"
        return Judgement(history=history, exit_code=moved.exit_code, reason=reason, text=root.report.text)
    if needed or not any(entry.node == root.node for entry in before):
        return None
    reason = f"{signature} on {root.node} again, for which it was left out before"
    again = Judgement(history=history, exit_code=before[-1].exit_code, reason=reason, text=root.report.text)
    blamed = _blame(again, own=own)
    return blamed if blamed.alone is not None else None


def _weigh(
    history: tuple[Failure, ...], *, root: Reported, needed: bool, no_progress_limit: int, bucket_limit: int
) -> Judgement:
    report, bucket = root.report, _bucket(root.report)

    def over(exit_code: int, reason: str) -> Judgement:
        return Judgement(history=history, exit_code=int(exit_code), reason=reason, text=report.text)

    step = max(failure.step for failure in history)
    if bucket in _OWN:
        if report.node_local and not needed and report.exit_code is not None:
            return over(report.exit_code, f"worker {report.rank} ended with exit code {report.exit_code}")
        twice = _generations(failure for failure in history if failure.signature == report.signature)
        if len(twice) >= 2 and not any(failure.committed_steps for failure in history):
            return over(
                ExitCode.FAILED, f"{report.signature} in generations {_list(twice)}, before any step was committed"
            )
        hung = bucket is Bucket.HANG
        alike = (each for each in history if each.bucket in _OWN and (each.bucket is Bucket.HANG) == hung)
        failed = _generations(alike)
        count = f"{len(failed)} of {no_progress_limit}"
        if len(failed) >= no_progress_limit:
            reason = f"step {step} was not passed in generations {_list(failed)}: failure {count}"
            return over(ExitCode.NO_PROGRESS, reason)
        return Judgement(history=history, exit_code=None, reason=f"failure {count} without passing step {step}")
    spent = _generations(failure for failure in history if failure.bucket is bucket)
    count = f"{len(spent)} of {bucket_limit}"
    what = "a group did not form" if bucket is Bucket.GROUP else "a lost peer though all are back"
    reason = f"{what}, step {step} not passed: {count}"
    if len(spent) >= bucket_limit:
        return over(ExitCode.NO_PROGRESS, f"{reason} in generations {_list(spent)}")
    return Judgement(history=history, exit_code=None, reason=reason)


def _blame(judgement: Judgement, *, own: Sequence[Reported]) -> Judgement:
    """Whether one agent's workers alone failed."""
    root = own[0]
    agents = {failure.agent for failure in judgement.history if failure.bucket in _OWN} | {one.agent for one in own}
    if len(agents) > 1:
        return judgement
    alone = Barred(
        agent=root.agent,
        node=root.node,
        signature=root.report.signature,
        exit_code=judgement.exit_code or 0,
        reason=f"{judgement.reason}; only on {root.node}, which is left out",
        text=root.report.text,
        step=root.report.step,
    )
    return dataclasses.replace(judgement, alone=alone)


def _bucket(report: FailureReport) -> Bucket:
    if report.lacks:
        return Bucket.STATE
    own = Bucket.EXIT if report.signature.startswith("exit ") or not report.signature else Bucket.EXCEPTION
    return _CLOSED_BY.get(report.cause, own)


def _shared(reports: Sequence[Reported]) -> list[Reported]:
    """A generation that no worker's own failure ended: nobody's, and a group that did not form explains lost peers."""
    ordered = sorted(reports, key=lambda one: _bucket(one.report) is Bucket.PEER)
    return [Reported(agent="", node="", report=one.report) for one in ordered[:1]]


def _extend(history: tuple[Failure, ...], *, generation: int, reports: Sequence[Reported]) -> tuple[Failure, ...]:
    """Add what is not yet there, each to the generation it ended; forget what came before if the run got further."""
    known = {(failure.generation, failure.agent) for failure in history}
    since = min((one.report.generation or generation for one in reports), default=generation)
    added = tuple(
        Failure(
            generation=one.report.generation or generation,
            agent=one.agent,
            step=one.report.step,
            signature=one.report.signature,
            committed_steps=one.report.committed_steps,
            bucket=_bucket(one.report),
        )
        for one in reports
        if (one.report.generation or generation, one.agent) not in known
    )[: max(0, _MOST_OF_A_GENERATION - sum(failure.generation >= since for failure in history))]
    earlier = [failure.step for failure in history if failure.generation < since]
    if added and earlier and max(failure.step for failure in added) > max(earlier):
        history = tuple(failure for failure in history if failure.generation >= since)
    return history + added


def _generations(failures: Iterable[Failure]) -> list[int]:
    return sorted({failure.generation for failure in failures})


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(str(number) for number in numbers)
