"""Budget: which failures may go on being survived. Only failing without progress ends a job.

Pure. A lost peer, a lost node, joins and leaves are always free. A failure of a worker's own is kept in the history
until a later one shows that the run got past its step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elastic.errors import ExitCode
from elastic.events import Cause
from elastic.rendezvous.model import Failure, FailureReport

_OWN = frozenset({Cause.WORKER_EXIT, Cause.WORKER_SIGNAL, Cause.GROUP_FAILED})
# A worker that ends so has said that starting it again cannot help.
_FINAL = frozenset({ExitCode.USAGE, ExitCode.FENCED})


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What the failures so far amount to. `exit_code` is set where the job is over; `text` is then its last word."""

    history: tuple[Failure, ...]
    exit_code: int | None
    reason: str
    text: str = ""


def judge(
    history: tuple[Failure, ...],
    *,
    generation: int,
    reports: Sequence[tuple[str, FailureReport]],
    no_progress_limit: int,
    node_lost: bool = False,
) -> Judgement:
    """Judge the (agent, report) pairs that ended `generation`, after the failures of earlier ones.

    `node_lost`: a member of that generation is gone, which explains a group that did not form.
    """
    for _agent, report in reports:
        if report.exit_code in _FINAL:
            reason = f"worker {report.rank} ended with exit code {report.exit_code}: starting it again cannot help"
            return Judgement(history=history, exit_code=report.exit_code, reason=reason, text=report.text)
    own = [(agent, report) for agent, report in reports if _counts(report, node_lost=node_lost)]
    history = _extend(history, generation=generation, own=own)
    if not own:
        return Judgement(history=history, exit_code=None, reason="nothing counts against the budget")
    root = own[0][1]
    generations = sorted({failure.generation for failure in history})
    twice = sorted({failure.generation for failure in history if failure.signature == root.signature})
    if len(twice) >= 2 and not any(failure.committed_steps for failure in history):
        reason = f"{root.signature} in generations {_list(twice)}, before any step was committed"
        return Judgement(history=history, exit_code=int(ExitCode.FAILED), reason=reason, text=root.text)
    step = max(failure.step for failure in history)
    count = f"{len(generations)} of {no_progress_limit}"
    if len(generations) >= no_progress_limit:
        reason = f"step {step} was not passed in generations {_list(generations)}: failure {count}"
        return Judgement(history=history, exit_code=int(ExitCode.NO_PROGRESS), reason=reason, text=root.text)
    return Judgement(history=history, exit_code=None, reason=f"failure {count} without passing step {step}")


def _counts(report: FailureReport, *, node_lost: bool) -> bool:
    return report.cause in _OWN and not (report.cause is Cause.GROUP_FAILED and node_lost)


def _extend(
    history: tuple[Failure, ...], *, generation: int, own: Sequence[tuple[str, FailureReport]]
) -> tuple[Failure, ...]:
    """Add what is not yet there; forget what came before if the run has got further since."""
    known = {(failure.generation, failure.agent) for failure in history}
    added = tuple(
        Failure(
            generation=generation,
            agent=agent,
            step=report.step,
            signature=report.signature,
            committed_steps=report.committed_steps,
        )
        for agent, report in own
        if (generation, agent) not in known
    )
    earlier = [failure.step for failure in history if failure.generation < generation]
    if added and earlier and max(failure.step for failure in added) > max(earlier):
        history = tuple(failure for failure in history if failure.generation == generation)
    return history + added


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(str(number) for number in numbers)
