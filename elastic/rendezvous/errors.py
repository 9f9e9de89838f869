"""Errors of the rendezvous that its callers must tell apart."""

from __future__ import annotations

from elastic.errors import ElasticError, ExitCode, StoreError
from elastic.events import Outcome


class LeaseEnded(StoreError):
    """A key was to be bound to a lease that has ended: take a new one and write again."""


class JobClosed(ElasticError):
    """The job is over, well or not, with its exit code. `text` is its last word: the root traceback, or the reason."""

    def __init__(self, *, outcome: Outcome, exit_code: int, reason: str, text: str = "") -> None:
        self.outcome = outcome
        self.exit_code = ExitCode(exit_code)  # type: ignore[misc]  # unlike other errors, this one tells another's end
        self.reason = reason
        self.text = text or reason
        super().__init__(f"the job {outcome} with exit code {exit_code}: {reason}")
