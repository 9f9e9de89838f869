"""Places: which ranks share a directory, where nodes may have private disks under the same path.

Each directory bears a random identity of its own, made at once by whoever comes first: other identities are other
directories, for certain and without waiting. The same identity may also be a copy of one, so a fresh name is looked
for by all who claim to share it; on a network file system it may take a while to be seen.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from elastic.checkpoint.layout import MAX_SMALL_BYTES
from elastic.checkpoint.seams import Group
from elastic.checkpoint.storage import Storage
from elastic.checkpoint.survey import VISIBLE_POLL_S, VISIBLE_WITHIN_S, read_small
from elastic.clock import Clock
from elastic.config.choices import PathScope
from elastic.errors import UsageError

PLACE = ".elastic_place"
"""File that holds the identity of a directory."""
_ROUNDS = 3


@dataclass(frozen=True, kw_only=True)
class Places:
    """The directories of a world, numbered by the lowest rank that uses each, as one rank sees them."""

    of_rank: tuple[int, ...]
    rank: int

    @property
    def mine(self) -> int:
        """The place of this rank."""
        return self.of_rank[self.rank]

    @property
    def count(self) -> int:
        """How many directories there are."""
        return max(self.of_rank) + 1

    @property
    def leads(self) -> tuple[int, ...]:
        """The rank that acts for each place: its lowest."""
        return tuple(self.of_rank.index(place) for place in range(self.count))

    @property
    def lead(self) -> bool:
        """Whether this rank acts for its place."""
        return self.leads[self.mine] == self.rank

    @property
    def writers(self) -> int:
        """Among how many ranks of a place its copy of replicated state is shared out, the same in every place."""
        return min(self.of_rank.count(place) for place in range(self.count))

    @property
    def index(self) -> int:
        """This rank's number among those of its place."""
        return self.of_rank[: self.rank].count(self.mine)


def number(names: Sequence[str], *, rank: int) -> Places:
    """Places from what each rank calls the directory that it uses."""
    order = list(dict.fromkeys(names))
    return Places(of_rank=tuple(order.index(name) for name in names), rank=rank)


def share(group: Group, value: Any) -> list[Any]:
    """Everyone's JSON value, by rank, everywhere. Raises PeerLost."""
    everyone: list[Any] = group.broadcast(group.gather(value))
    return everyone


def find_places(
    root: str, *, scope: PathScope, node: str, group: Group, storage: Storage, clock: Clock, nonce: Callable[[], str]
) -> Places | None:
    """Find out who shares a directory; None where all do. Every rank calls it.

    Raises:
        UsageError: a directory cannot be used, or ranks cannot agree on what they share.
        PeerLost: from the group.
    """
    if group.size == 1 or scope is PathScope.SHARED:
        return None
    if scope is PathScope.PRIVATE:
        # By directory as well: nodes may have one name, and a copied directory one identity.
        found = zip(share(group, node), _identities(root, group, storage, nonce), strict=True)
        return _several(number([f"{identity} on {name}" for name, identity in found], rank=group.rank))
    for _ in range(_ROUNDS):
        places = number(_identities(root, group, storage, nonce), rank=group.rank)
        seen = _look(root, places, group=group, storage=storage, clock=clock, nonce=nonce)
        if all(share(group, seen)):
            return _several(places)
        if not seen:
            storage.replace(os.path.join(root, PLACE), nonce().encode())  # a copy of another place's
        share(group, None)  # nobody reads it before it is written
    raise UsageError(
        f"it cannot be found out which nodes share checkpoint.save_path {root}: a name that one rank makes there is "
        "not seen by others. Set checkpoint.save_path_scope to shared or private."
    )


def _several(places: Places) -> Places | None:
    return places if places.count > 1 else None


def _identities(root: str, group: Group, storage: Storage, nonce: Callable[[], str]) -> list[str]:
    """What each rank reads as the identity of its directory."""
    names = share(group, _identity(root, storage, nonce))
    if faults := [f"rank {rank}: {each['fault']}" for rank, each in enumerate(names) if each["fault"]]:
        raise UsageError(f"checkpoint.save_path {root} cannot be used: {'; '.join(faults)}")
    return [each["name"] for each in names]


def _identity(root: str, storage: Storage, nonce: Callable[[], str]) -> dict[str, str]:
    path = os.path.join(root, PLACE)
    try:
        if storage.size_bytes(path) is None:
            storage.create(path, nonce().encode())
        name = read_small(path, storage=storage, limit_bytes=MAX_SMALL_BYTES)
    except (OSError, ValueError) as error:
        return {"name": "", "fault": str(error)}
    return {"name": name.decode(errors="replace"), "fault": ""}


def _look(
    root: str, places: Places, *, group: Group, storage: Storage, clock: Clock, nonce: Callable[[], str]
) -> bool:  # fmt: skip
    """Whether this rank sees the name that the lead of its place has just made."""
    name = f".elastic_probe-{group.broadcast(nonce())}-{places.mine}"
    path = os.path.join(root, name)
    try:
        if places.lead:
            storage.make_dir(path)
        made = True
    except OSError:
        made = False
    share(group, None)
    limit_s = clock.monotonic_s() + VISIBLE_WITHIN_S
    while made and name not in storage.names(root) and clock.monotonic_s() < limit_s:
        clock.sleep(VISIBLE_POLL_S)
    seen = made and name in storage.names(root)
    share(group, None)
    if places.lead and made:
        storage.remove_tree(path)
    return seen
