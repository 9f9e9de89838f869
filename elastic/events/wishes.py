"""Wishes: what a person asked of a whole job, as an event."""

from __future__ import annotations

from dataclasses import dataclass

from elastic.events.kinds import Event


@dataclass(frozen=True, kw_only=True)
class WishHeard(Event):
    """A person wants another size of the job, that it rests, or that it goes on. Emitted by the leader only.

    `what`: scale, pause or resume; `max_nodes` 0: the size is as torchrun was told.
    """

    kind = "wish_heard"
    what: str
    min_nodes: int
    max_nodes: int
    reason: str
