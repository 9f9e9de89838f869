"""Errors of the rendezvous that its callers must tell apart."""

from __future__ import annotations

from elastic.errors import ElasticError, StoreError
from elastic.events import Outcome


class LeaseEnded(StoreError):
    """A key was to be bound to a lease that has ended: take a new one and write again."""


class JobClosed(ElasticError):
    """The job is over, well or not; `text` is its last word (a root traceback, where there is one)."""

    def __init__(self, *, outcome: Outcome, code: int, reason: str, text: str = "") -> None:
        self.outcome = outcome
        self.code = code
        self.reason = reason
        self.text = text
        super().__init__(f"the job {outcome} with exit code {code}: {reason}")
