"""Votes while restoring: what one rank met becomes the verdict of all, so that they go on or fall back together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from elastic.checkpoint.seams import Group
from elastic.errors import CheckpointDamaged, CheckpointError, Fenced

T = TypeVar("T")

Vote = dict[str, str]
"""`damaged`, `unfit` or `fenced`, and why; empty where nothing was wrong."""


def heard(work: Callable[[], T]) -> tuple[T | None, Vote]:
    """What it gives, or what this rank has to say of its failure."""
    try:
        return work(), {}
    except CheckpointDamaged as error:
        return None, {"damaged": str(error)}
    except Exception as error:  # noqa: BLE001 - because peers wait for this rank's vote, whatever went wrong
        known = isinstance(error, CheckpointError)
        return None, {"unfit": str(error) if known else f"{type(error).__name__}: {error}"}


def settle(vote: Vote, *, of: str, group: Group, claim: Callable[[], Vote] = dict) -> str | None:
    """What was damaged on any rank; None where all go on. `claim`: what rank 0 does once all can.

    Raises:
        CheckpointError: it does not fit, on some rank.
        Fenced: a newer generation exists.
        PeerLost: from the group.
    """
    votes = group.gather(vote)
    verdict = group.broadcast(None if votes is None else _count(votes) or claim())
    if "fenced" in verdict:
        raise Fenced(f"{of} was not restored: {verdict['fenced']}")
    if "damaged" in verdict:
        return str(verdict["damaged"])
    if "unfit" in verdict:
        raise CheckpointError(f"{of} cannot be restored: {verdict['unfit']}")
    return None


def _count(votes: list[Vote]) -> Vote:
    """One verdict of all votes: damage on any rank makes all fall back, before any misfit is looked at."""
    for kind in ("damaged", "unfit"):
        for rank, vote in enumerate(votes):
            if kind in vote:
                return {kind: vote[kind] if len(votes) == 1 else f"rank {rank}: {vote[kind]}"}
    return {}
