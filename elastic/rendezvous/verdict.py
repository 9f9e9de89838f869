"""Verdicts: what the leader may decide to do. Each carries the sentence that says why."""

from __future__ import annotations

from dataclasses import dataclass

from elastic.rendezvous.model import World


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Do nothing until something changes, or until this second of the leader's clock.

    `short`: how many nodes must still come before a world can be agreed.
    `awaited`: nothing will come of it before so many members have written.
    """

    until_s: float | None = None
    awaited: int = 1
    reason: str
    short: int = 0


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Ask these agents for their name."""

    agents: tuple[str, ...]
    reason: str


@dataclass(frozen=True, kw_only=True)
class Evict:
    """Revoke the leases of these agents: their keys go."""

    agents: tuple[str, ...]
    reason: str


@dataclass(frozen=True, kw_only=True)
class Open:
    """Write `world`: the generation is over, its members come together for the next."""

    world: World
    reason: str


@dataclass(frozen=True, kw_only=True)
class Form:
    """Write `world` and its generation: the next membership is agreed."""

    world: World
    reason: str


@dataclass(frozen=True, kw_only=True)
class Close:
    """Write `world`: the job is over."""

    world: World
    reason: str


Verdict = Wait | Probe | Evict | Open | Form | Close
