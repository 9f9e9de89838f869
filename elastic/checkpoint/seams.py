"""What the checkpoint package is given from outside: the group of ranks, the committer, the settings."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from elastic.checkpoint.layout import LOCK, CommitRecord
from elastic.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor


class Settings(Protocol):
    """The checkpoint section of the configuration, in the seed's names."""

    @property
    def enable_save(self) -> bool: ...
    @property
    def save_path(self) -> str: ...
    @property
    def save_interleaved_steps(self) -> int: ...
    @property
    def save_mode(self) -> str: ...
    @property
    def save_overlap(self) -> str: ...
    @property
    def memory_every_steps(self) -> int: ...
    @property
    def memory_peers(self) -> int: ...
    @property
    def memory_required(self) -> bool: ...
    @property
    def no_save_optim(self) -> bool: ...
    @property
    def save_max(self) -> int: ...
    @property
    def keep_every_steps(self) -> int: ...
    @property
    def load_path(self) -> str: ...
    @property
    def checkpoint_path(self) -> str: ...
    @property
    def load_unhealthy(self) -> bool: ...
    @property
    def no_load_optim(self) -> bool: ...
    @property
    def load_balanced(self) -> bool: ...


class Pending(Protocol):
    """Something under way."""

    def wait(self) -> None:
        """Return when it is done here. Raises PeerLost."""
        ...


class Group(Protocol):
    """The ranks of one generation, as far as small agreed messages go. Values are JSON types."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def gather(self, value: Any) -> list[Any] | None:
        """Everyone's value, by rank, on rank 0; None elsewhere. Raises PeerLost."""
        ...

    def broadcast(self, value: Any) -> Any:
        """Rank 0's value, everywhere; what others pass is ignored. Raises PeerLost."""
        ...

    def sum_(self, tensor: Tensor) -> None:
        """Add up a contiguous tensor over all ranks, in place. Raises PeerLost."""
        ...

    def send(self, tensor: Tensor, *, to: int) -> None:
        """Send a contiguous tensor to a rank that calls `receive_`. Raises PeerLost."""
        ...

    def receive_(self, tensor: Tensor, *, source: int) -> None:
        """Fill a contiguous tensor with what a rank sends. Raises PeerLost."""
        ...

    def start_exchange(self, received: Tensor, sent: Tensor, *, takes: Sequence[int], gives: Sequence[int]) -> Pending:
        """Begin to send everybody a piece of `sent` and to fill `received` with everybody's, by rank.

        Args:
            takes, gives: elements from and to each rank; both tensors have one axis.
        """
        ...


class _Done:
    def wait(self) -> None:
        """It is over."""


class AloneGroup:
    """A world of one."""

    rank = 0
    size = 1

    def gather(self, value: Any) -> list[Any] | None:
        return [value]

    def broadcast(self, value: Any) -> Any:
        return value

    def sum_(self, tensor: Tensor) -> None:
        """The sum over one rank is the tensor itself."""

    def send(self, tensor: Tensor, *, to: int) -> None:
        """There is nobody to send to."""

    def receive_(self, tensor: Tensor, *, source: int) -> None:
        """Nobody sends."""

    def start_exchange(self, received: Tensor, sent: Tensor, *, takes: Sequence[int], gives: Sequence[int]) -> Pending:
        received.copy_(sent)
        return _Done()


@dataclass(frozen=True, kw_only=True)
class CommitVerdict:
    """Whether an iteration was committed. `stale`: refused because a newer generation exists."""

    granted: bool
    reason: str
    stale: bool = False


class Committer(Protocol):
    """Who decides that an iteration counts. Only rank 0 asks."""

    def record(self) -> CommitRecord | None:
        """What was committed last; None where nothing was, or no record is kept."""
        ...

    def commit(self, record: CommitRecord) -> CommitVerdict:
        """Make this the record, if our generation and lease hold. The verdict may be a refusal; it never raises."""
        ...

    def fence(self) -> str | None:
        """Why nothing of ours may be published now, in words; None if it may. Quick, and never raises."""
        ...


class LockCommitter:
    """Without etcd: who holds the lock on the root commits, so there is no record. For rank 0 only."""

    def __init__(self, root: str) -> None:
        """Take the lock; it is held until `close` or the end of the process.

        Raises:
            UsageError: another process trains into this root.
        """
        path = os.path.join(root, LOCK)
        self._file = open(path, "ab")  # noqa: SIM115 - held for the life of the process
        # A forked data loader must not keep the lock when its parent is gone.
        os.register_at_fork(after_in_child=self._file.close)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise UsageError(
                f"{root} is in use: another process holds {path}. Wait until it has ended, stop it, "
                "or choose another checkpoint.save_path."
            ) from error

    def record(self) -> CommitRecord | None:
        return None

    def commit(self, record: CommitRecord) -> CommitVerdict:
        return CommitVerdict(granted=True, reason="this process holds the lock on the root")

    def fence(self) -> str | None:
        return None

    def close(self) -> None:
        """Give the lock back."""
        self._file.close()


def refuse_locked(root: str) -> None:
    """See whether a process that trains without etcd holds a root. Raises UsageError where one does."""
    if os.path.exists(os.path.join(root, LOCK)):
        LockCommitter(root).close()


def check_settings(settings: Settings, *, claimed: bool) -> None:
    """Refuse settings that contradict one another. `claimed`: whether save_path is this run's. Raises UsageError."""
    if settings.save_max < 1:
        raise UsageError(f"checkpoint.save_max is {settings.save_max}: keep at least 1 iteration")
    if settings.save_interleaved_steps < 1:
        raise UsageError(
            f"checkpoint.save_interleaved_steps is {settings.save_interleaved_steps}: it must be 1 or more"
        )
    if settings.enable_save and not claimed:
        raise UsageError("saving is on (checkpoint.enable_save), but checkpoint.save_path was not claimed for this run")
