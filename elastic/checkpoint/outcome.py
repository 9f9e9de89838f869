"""How a save ended, and how what went wrong on the way there is told to other ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from elastic.errors import Fenced


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a save ended, the same on every rank."""

    committed: bool
    stale: bool
    reason: str
    total_bytes: int
    manifest_digest: str = ""
    fenced: str = ""
    """Why the tracker was left alone, where the commit was granted and the lease lapsed right after."""
    left_out: str = ""
    """Which private directories do not hold it though it was committed, and why."""


def failed(reason: str, *, stale: bool = False) -> Outcome:
    """The outcome of a save that was not committed."""
    return Outcome(committed=False, stale=stale, reason=reason, total_bytes=0)


def attempt(work: Callable[[], Any]) -> dict[str, Any]:
    """Do something; a failure becomes a value that can be told to the other ranks."""
    try:
        return {"value": work(), "fault": None, "fenced": False}
    except Exception as error:  # noqa: BLE001 - because peers wait: a failure of any kind must reach the vote
        return {"value": None, "fault": f"{type(error).__name__}: {error}", "fenced": isinstance(error, Fenced)}
