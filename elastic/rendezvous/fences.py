"""Fences: what must hold in the store for a write of the protocol to be done. Pure.

A check before a write can be outrun by a process that was paused in between; these are compared by the store itself.
tests/harness/search.py shows that each of them is needed.
"""

from __future__ import annotations

from elastic.rendezvous.keys import Keys
from elastic.rendezvous.kv import Compare, Entry, Op, Put, created_at, holds, modified_at, present


def world_fence(keys: Keys, *, own: Entry, world_revision: int) -> list[Compare]:
    """For a leader: nobody wrote the world since it read it (0: there was none), and it still holds its key."""
    return [modified_at(keys.world, world_revision), created_at(own.key, own.create_revision)]


def world_write(keys: Keys, *, text: str, formed: str | None) -> list[Op]:
    """The world, and where a generation is formed its token, in one transaction: commits compare with the latter."""
    ops: list[Op] = [Put(keys.world, text)]
    if formed is not None:
        ops.append(Put(keys.generation, formed))
    return ops


def commit_fence(keys: Keys, *, agent: str, token: str) -> list[Compare]:
    """For a commit: its generation is the newest, and the agent has not lost its lease."""
    return [holds(keys.generation, token), present(keys.member(agent))]
