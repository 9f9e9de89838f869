"""The memory tier of a worker: two arenas, written in turn, so that one is valid whenever this process is killed.

The agent keeps the memory (`Arenas` in elastic/launch) and lends it by path; it outlives workers, and is gone with the
agent and its last worker, whatever ends them. A worker without such an agent keeps its own, for the save under way.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elastic.checkpoint.arena import Arena, Held
from elastic.checkpoint.background import Pending
from elastic.checkpoint.copying import Copier
from elastic.checkpoint.image import Image
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.room import Room, anonymous_arena, judge_room, look_for_room
from elastic.checkpoint.shards import Shard
from elastic.errors import CheckpointError

logger = logging.getLogger(__name__)


class NoRoom(CheckpointError):
    """The memory tier does not fit into the memory that there is."""


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A snapshot. `arena`: to be given back when nobody reads its images any more."""

    arena: int
    images: list[Image]
    sealed: Pending[None]
    """Done when all bytes are there. Raises what kept them from it."""

    @property
    def size_bytes(self) -> int:
        """Bytes of its images."""
        return sum(len(image.data) for image in self.images)


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where the arenas of this node lie: `own`, this worker's two, and `others`, those of its neighbours."""

    own: tuple[str, str]
    others: tuple[str, ...] = ()
    whole: bool = True
    """Whether this worker keeps all of the state: one on each node is enough."""
    workers: int = 1
    """How many of the node share its memory."""
    guests: tuple[str, ...] = ()
    """Two of the others, for copies of what a rank on another node keeps."""
    node: str = ""


class MemoryTier:
    """Not for several threads. Raises OSError at its making, where the arenas cannot be opened."""

    def __init__(
        self, places: Places | None = None, *, room: Callable[[], Room] = look_for_room, copier: Copier | None = None
    ) -> None:  # fmt: skip
        """Without `places` the memory is this process's own, and ends with it. `copier`: None: at once."""
        self._kept: tuple[int, ...] = ()
        if places is None:
            made = [anonymous_arena("elastic-snapshot") for _ in range(2)]
            self._kept = tuple(fd for fd, _ in made)
            places = Places(own=(made[0][1], made[1][1]), whole=False)
        self.whole = places.whole
        self.lasting = not self._kept
        """Whether what lies in it outlives this process."""
        self._places = places
        self._room = room
        self.node = places.node
        self.arenas = [Arena(path, copier=copier) for path in places.own]
        """This worker's own."""
        self.guests = [Arena(path) for path in places.guests]
        """For copies of what another node's worker has in the arena of the same number."""
        self._written: list[int | None] = [held.sequence if held else None for held in map(Arena.read, self.arenas)]
        self._busy: set[int] = set()
        self._copied: Taken | None = None

    def settle(self) -> None:
        """Wait for the copy that may be under way. One that failed is as if it had never been taken."""
        copied, self._copied = self._copied, None
        if copied is None:
            return
        try:
            copied.sealed.result()
        except Exception as error:  # noqa: BLE001 - because a device may say anything; who saves it asks by itself
            self._written[copied.arena] = None
            logger.warning("a copy in memory failed: %s", error)

    def close(self) -> None:
        """Let go of the arenas."""
        self.settle()
        for arena in (*self.arenas, *self.guests):
            arena.close()
        for fd in self._kept:
            os.close(fd)

    def check_room(self, state_bytes: int, *, guests: bool = False) -> None:
        """See before training begins whether two snapshots of a state of this size fit; with `guests`, four.

        Raises:
            NoRoom: they do not; the message says what to change.
        """
        used = [*self.arenas, *(self.guests if guests else ())]
        self.grow(len(used) * state_bytes - sum(arena.size_bytes for arena in used))

    def held(self) -> list[Held]:
        """What lies in the arenas of this node, newest first; this worker's own before its neighbours'."""
        self.settle()
        own = [held for held in map(Arena.read, self.arenas) if held is not None]
        return [*sorted(own, key=_newest), *sorted(self._neighbours(), key=_newest)]

    @property
    def free(self) -> int | None:
        """The arena that the next snapshot goes to: the older one that is not being written to disk; None: both are.

        Where that is the newest, the older one, which is being written, is valid meanwhile. Waiting for it instead
        would let the copies grow old for as long as a disk stalls. It is the same one on all ranks.
        """
        idle = [at for at in range(len(self.arenas)) if at not in self._busy]
        return min(idle, key=lambda at: self._written[at] or 0, default=None)

    def take(
        self, manifest: Manifest, shards: Sequence[Shard], *, rank: int, whole: bool, keep: bool, part: bool = False
    ) -> Taken | None:
        """Copy a state; None where both arenas are busy. `keep`: it is not written again before `give_back`.

        Args:
            whole: whether it is everything that a rank needs.
            part: whether with what all other ranks copy it is the whole state.

        Raises:
            NoRoom: it has grown beyond the memory that there is.
            CheckpointError: it cannot be stored.
        """
        self.settle()
        if (at := self.free) is None:
            return None
        sequence = 1 + max((each for each in self._written if each is not None), default=0)
        self._written[at] = None
        written = self.arenas[at].write(
            manifest, shards, sequence=sequence, rank=rank, whole=whole, part=part, grow=self.grow
        )
        self._written[at] = sequence
        if keep:
            self._busy.add(at)
        self._copied = Taken(arena=at, images=written.images, sealed=written.sealed)
        return self._copied

    def forget_newer(self, iteration: int) -> None:
        """Let this worker's arenas no longer hold states beyond an iteration."""
        self.settle()
        for arena in self.guests:
            if (held := arena.read()) is not None and held.manifest.iteration > iteration:
                arena.forget()
        for at, arena in enumerate(self.arenas):
            held = arena.read()
            if held is not None and held.manifest.iteration > iteration and at not in self._busy:
                arena.forget()
                self._written[at] = None

    def give_back(self, taken: Taken) -> None:
        """Its images are on disk, or will never be."""
        self._busy.discard(taken.arena)

    def grow(self, more_bytes: int) -> None:
        """Take so many bytes more. Raises NoRoom."""
        verdict = judge_room(max(0, more_bytes) * self._places.workers, self._room())
        if not verdict.enough:
            raise NoRoom(f"no room for the memory tier: {verdict.reason}")

    def _neighbours(self) -> list[Held]:
        found = []
        for path in self._places.others:
            try:
                arena = Arena(path)
            except OSError:
                continue  # then there is nothing to be had from it
            held = arena.read()
            arena.close()
            if held is not None:
                found.append(held)
        return found


def _newest(held: Held) -> tuple[int, int]:
    return (-held.manifest.generation, -held.manifest.iteration)
