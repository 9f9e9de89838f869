"""Key-value seam: the few verbs of a store that the rendezvous needs. etcd in production, memory in tests.

It is ours so that no client library's types or errors leak through it. Keys and values are text. Every verb may raise
StoreUnavailable (nobody answered within the limit; whether it was done is then unknown) and StoreRefused.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A key with its value. Revisions count every change of the store; `lease` is 0 where there is none."""

    key: str
    value: str
    create_revision: int
    mod_revision: int
    lease: int = 0


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """All keys of a prefix, by key, as they were at one revision."""

    entries: tuple[Entry, ...]
    revision: int


class Aspect(enum.Enum):
    """What of a key is compared."""

    PRESENT = "present"
    CREATED = "created"
    MODIFIED = "modified"
    VALUE = "value"


@dataclass(frozen=True)
class Compare:
    """A condition of a transaction; made by the functions below."""

    key: str
    aspect: Aspect
    expected: int | str


def present(key: str) -> Compare:
    """The key exists."""
    return Compare(key, Aspect.PRESENT, 1)


def created_at(key: str, revision: int) -> Compare:
    """The key is the very one that was created at this revision; 0: it does not exist."""
    return Compare(key, Aspect.CREATED, revision)


def modified_at(key: str, revision: int) -> Compare:
    """Nobody wrote the key since this revision; 0: it does not exist."""
    return Compare(key, Aspect.MODIFIED, revision)


def holds(key: str, value: str) -> Compare:
    """The key exists and has this value."""
    return Compare(key, Aspect.VALUE, value)


@dataclass(frozen=True)
class Put:
    """Write a key, bound to a lease if not 0. `tell_replaced`: the answer holds the entry that was there."""

    key: str
    value: str
    lease: int = 0
    tell_replaced: bool = False


@dataclass(frozen=True)
class Delete:
    """Remove a key; nothing happens where there is none."""

    key: str


@dataclass(frozen=True)
class Get:
    """Read a key; the answer holds its entry."""

    key: str


Op = Put | Delete | Get


@dataclass(frozen=True, kw_only=True)
class Transacted:
    """Whether all comparisons held, so that all operations were done; otherwise none was.

    `replaced`: by key, what was there before the writes that asked for it; a key that is new is missing.
    `read`: by key, what the reads found. None at all where an answer was lost, so that only the doing is known.
    """

    succeeded: bool
    revision: int
    replaced: Mapping[str, Entry] = field(default_factory=dict)
    read: Mapping[str, Entry | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Update:
    """What a watch tells. `reset`: `entries` is all there is (the first update, and after a gap); else what changed."""

    entries: tuple[Entry, ...]
    deleted: tuple[str, ...] = ()
    revision: int
    reset: bool = False

    def applied_to(self, entries: Mapping[str, Entry]) -> dict[str, Entry]:
        """The known entries by key, after this update."""
        kept = {} if self.reset else {key: entry for key, entry in entries.items() if key not in self.deleted}
        return kept | {entry.key: entry for entry in self.entries}


class Watch(Protocol):
    """A running watch."""

    def cancel(self) -> None:
        """Stop. No callback begins after this returns, unless called from one."""
        ...


OnUpdate = Callable[[Update], None]
OnBreak = Callable[[str], None]


class KeyValueStore(Protocol):
    """A strongly consistent store with leases, revisions, transactions and watches. Safe to use from any thread."""

    def grant(self, ttl_s: int) -> int:
        """A new lease, by its id. The store may grant more seconds than asked for, never less."""
        ...

    def keep_alive(self, lease: int) -> float:
        """Renew a lease; the seconds that it now lasts, 0.0 where it has already ended."""
        ...

    def revoke(self, lease: int) -> None:
        """End a lease and remove its keys. One that has ended is no error."""
        ...

    def get(self, key: str) -> Entry | None:
        """The key's entry, or None."""
        ...

    def range(self, prefix: str) -> Snapshot:
        """All keys that begin with the prefix."""
        ...

    def put(self, key: str, value: str, *, lease: int = 0) -> int:
        """Write a key; the revision of the write.

        Raises:
            LeaseEnded: the lease is not there any more.
        """
        ...

    def transact(self, compares: Sequence[Compare], *, ops: Sequence[Op]) -> Transacted:
        """Do all operations if all comparisons hold, else none. Raises LeaseEnded like `put`.

        May be sent more than once where an answer is lost. It is done once all the same, and never taken for refused,
        if it compares `modified_at` of a key that it writes; without such a comparison it must not matter.
        """
        ...

    def watch(
        self, key: str, *, prefix: bool = False, since: int | None = None, on_update: OnUpdate, on_break: OnBreak
    ) -> Watch:
        """Tell all that is and all that changes, in order: the former from the caller's thread if the store answers.

        `since`: the caller knows what there was at this revision; nothing is told until something changes.
        A watch mends itself: `on_break` hears why it broke, then the changes that were missed follow, or a reset
        where they are no longer known.
        """
        ...

    def close(self) -> None:
        """Drop connections. Watches end."""
        ...
