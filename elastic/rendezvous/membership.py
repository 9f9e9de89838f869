"""Membership: what a coordinator is given and what it hands out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from elastic.events import Cause
from elastic.rendezvous.model import Seat, World


@dataclass(frozen=True, kw_only=True)
class AgentIdentity:
    """Who an agent is. `agent` is new with each process; `node` serves for order and for people.

    `address` is where other nodes reach this one; `slots` its number of workers; `root_generation` the newest
    generation that the checkpoint root has seen.
    """

    agent: str
    node: str
    address: str
    slots: int
    exporter: str = ""
    fingerprint: str = ""
    root_generation: int = 0


class HostedStore(Protocol):
    """A store for workers that already listens on this agent."""

    @property
    def port(self) -> int: ...

    def close(self) -> None:
        """Listen no more."""
        ...


class HostStore(Protocol):
    """Opens a store for the next generation, on this address only."""

    def __call__(self, address: str) -> HostedStore: ...


class NoStore:
    """For coordinators whose workers need no store."""

    port = 0

    def __init__(self, address: str = "") -> None:
        self.address = address

    def close(self) -> None:
        """Nothing to do."""


@dataclass(frozen=True, kw_only=True)
class Membership:
    """This agent's place in a generation. `seconds` from asking to agreed.

    `hosted` is set on the agent of seat 0: the store that listens at `store_address`:`store_port`. It stays open
    until this agent joins another generation or stops.
    """

    generation: int
    world: World
    seat: Seat
    store_address: str
    store_port: int
    seconds: float
    hosted: HostedStore | None
    leader: bool


@dataclass(frozen=True, kw_only=True)
class Regroup:
    """Why this agent's generation is over. `planned`: workers finish their step and save first.

    `generation` is the newest one known; `left_out`: it was formed without this agent. `closed`: the job is over.
    """

    cause: Cause
    planned: bool
    reason: str
    generation: int
    left_out: bool = False
    closed: bool = False


@dataclass(frozen=True, kw_only=True)
class CommitVerdict:
    """Whether a commit record was written. Not granted: it was not, or nobody can tell (the store was away)."""

    granted: bool
    reason: str
