"""Fences: what must hold in the store for a write of the protocol to be done. Pure.

A check before a write can be outrun by a process that was paused in between; these are compared by the store itself.
tests/harness/search.py shows that each of them is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from elastic.rendezvous.keys import Keys
from elastic.rendezvous.kv import Compare, Delete, Entry, Op, Put, created_at, holds, modified_at, present

_NONE: Mapping[int, str] = MappingProxyType({})


def world_fence(keys: Keys, *, own: Entry, world_revision: int) -> list[Compare]:
    """For a leader: nobody wrote the world since it read it (0: there was none), and it still holds its key."""
    return [modified_at(keys.world, world_revision), created_at(own.key, own.create_revision)]


def world_write(
    keys: Keys, *, text: str, formed: str | None, closed: bool = False, parts: Mapping[int, str] = _NONE
) -> list[Op]:
    """The world, and where a generation is formed its token, in one transaction: commits compare with the latter.

    `closed`: the job is over, and what was wished of it too. `parts`: the seats of a large world, see apart.py.
    """
    ops: list[Op] = [Put(keys.world, text)]
    if formed is not None:
        ops.append(Put(keys.generation, formed))
    if closed:
        ops.append(Delete(keys.wish))
    ops.extend(Put(keys.part(number), seats) for number, seats in parts.items())
    return ops


def commit_fence(keys: Keys, *, agent: str, token: str, revision: int) -> list[Compare]:
    """For a commit: its generation is the newest, the agent has not lost its lease, and nobody wrote the record since
    it was read (0: there was none), so that a request that arrives late does not take it back."""
    return [holds(keys.generation, token), present(keys.member(agent)), modified_at(keys.commit, revision)]


def restore_fence(keys: Keys) -> list[Compare]:
    """For who writes a lost world again: there is none."""
    return [modified_at(keys.world, 0)]
