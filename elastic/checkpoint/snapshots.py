"""Copies of the state at a step boundary: into the memory tier where there is one, else into memory of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from elastic import events
from elastic.checkpoint.arena import Held
from elastic.checkpoint.image import Image, heap_image
from elastic.checkpoint.layout import ShardKind, shard_name
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.memory import MemoryTier, NoRoom, Taken
from elastic.checkpoint.passing import distance, pass_on
from elastic.checkpoint.seams import Group, Settings
from elastic.checkpoint.shards import Shard, size_bytes
from elastic.checkpoint.state import Captured
from elastic.clock import Clock
from elastic.errors import UsageError

_MOMENTS = 2
"""Tensors that an optimizer is taken to keep for each parameter before its first step: AdamW's number."""


@dataclass(frozen=True, kw_only=True)
class Copied:
    """A state that training can go on from. `taken`: where it lies in the memory tier, to be given back."""

    images: Sequence[Image]
    taken: Taken | None = None

    def settled(self) -> Sequence[Image]:
        """The images, once all bytes are there. From any thread. Raises what kept them from it."""
        if self.taken is not None:
            self.taken.sealed.result()
        return self.images


class Snapshots:
    """The memory tier of one worker, if it has one, and how it is used. It never stops training."""

    def __init__(
        self, tier: MemoryTier | None, *, group: Group, every_steps: int, required: bool, peers: bool,
        emit: events.Emit, clock: Clock,
    ) -> None:  # fmt: skip
        """`every_steps`: 0 takes none but those to be saved. `required`: no room is an error, not a notice.

        `peers`: whether parts of a state are passed on to another node.
        """
        self._tier = tier
        self._every_steps = every_steps
        self._required = required
        self._emit = emit
        self._clock = clock
        self._skipped = 0
        self._last_s: float | None = None
        self.parts = False
        """Whether the state is dealt out, so that every rank keeps its part; the same on all ranks."""
        self._peers, self._far = peers, 0
        self._fault = ""
        self.serve(group)

    def serve(self, group: Group) -> None:
        """Work in another generation from here on."""
        self._group = group

    def settle(self, *, parts: bool) -> None:
        """Agree on what is kept where. Every rank calls it. `parts`: whether it is dealt out. Raises PeerLost."""
        self.parts, self._far = parts, 0
        if not parts or not self._peers or self._every_steps == 0:
            return
        nodes = self._group.gather(self._tier.node if self._tier is not None and self._tier.guests else None)
        # A rank without memory takes part all the same, since the others cannot know when it lost it.
        names = [each or f"of rank {rank}" for rank, each in enumerate(nodes or [])]
        self._far = self._group.broadcast(distance(names) if any(nodes or []) else 0)

    @property
    def tier(self) -> MemoryTier | None:
        """The arenas; None where there are none, or not any more."""
        return self._tier

    def held(self) -> list[Held]:
        """What lies in the arenas of this node."""
        return [] if self._tier is None else self._tier.held()

    @property
    def kept(self) -> bool:
        """Whether states are kept for a restart."""
        if self._tier is None or self._every_steps == 0:
            return False
        return self._tier.lasting if self.parts else self._tier.whole

    @property
    def shares(self) -> bool:
        """Whether copies are passed on to other nodes: the same on all ranks, whatever they have."""
        return self._far > 0

    def due(self, iteration: int) -> bool:
        """Whether the step just taken is to be followed by a snapshot: the same on all ranks, kept here or not."""
        return self._every_steps > 0 and iteration % self._every_steps == 0

    def check(self, captured: Captured) -> None:
        """See before training begins whether there is room.

        Raises:
            UsageError: there is none, and the configuration says that there must be.
        """
        if self._tier is None:
            return
        model = sum(map(size_bytes, captured.model.values()))
        opt = sum(map(size_bytes, captured.opt.values()))
        state_bytes = model + max(opt, _MOMENTS * model if captured.opt else 0)
        self._guarded(lambda tier: tier.check_room(state_bytes, guests=self._far > 0))

    def copy(self, draft: Manifest, shards: Sequence[Shard], captured: Captured) -> Copied:
        """Copy what this rank is to write; and with it, where states are kept for a restart, everything else.

        Raises:
            CheckpointError: it cannot be stored.
        """
        taken = self._take(draft, shards, captured, keep=True)
        if taken is None:
            return Copied(images=[heap_image(shard) for shard in shards])
        names = {shard.name for shard in shards}
        return Copied(images=[image for image in taken.images if image.name in names], taken=taken)

    def keep(self, draft: Manifest, shards: Sequence[Shard], captured: Captured) -> bool:
        """Copy everything that this rank has to keep, for a restart; False where the arena is still being written to
        disk."""
        taken = self._take(draft, shards, captured, keep=False) if self.kept else None
        self.share(draft, taken)
        return taken is not None

    def share(self, draft: Manifest, taken: Taken | None) -> None:
        """Pass on to another node what was copied last, where that is wanted. Every rank calls it, whatever it has.

        Raises:
            PeerLost: from the group.
        """
        if not self._far:
            return
        if self._tier is not None:
            self._tier.settle()
        begun_s = self._clock.monotonic_s()
        passed = pass_on(self._tier, None if taken is None else taken.arena, group=self._group, far=self._far)
        if passed.fault and passed.fault != self._fault:
            self._emit(events.Notice(text=f"a copy in another node's memory failed: {passed.fault}"))
        self._fault = passed.fault
        if passed.fault:
            self._emit(events.CheckpointFailed(iteration=draft.iteration, reason=passed.fault, tier="peer"))
        if self._group.rank == 0 and passed.sent_bytes:
            seconds = self._clock.monotonic_s() - begun_s
            self._emit(
                events.CheckpointSaved(
                    iteration=draft.iteration,
                    consumed_samples=draft.consumed_samples,
                    bytes=passed.sent_bytes,
                    seconds=seconds,
                    interval_s=None,
                    tier="peer",
                    stall_s=seconds,
                )
            )

    def forget_newer(self, iteration: int) -> None:
        """What is newer than the state that training goes on from is of a line that was left."""
        if self._tier is not None:
            self._tier.forget_newer(iteration)

    def give_back(self, copied: Copied) -> None:
        """It is on disk, or will never be."""
        if self._tier is not None and copied.taken is not None:
            self._tier.give_back(copied.taken)

    @contextlib.contextmanager
    def lending(self, copied: Copied | None) -> Iterator[None]:
        """Around what begins to write a copy to disk: where that fails, nobody will ever give it back."""
        try:
            yield
        except BaseException:
            if copied is not None:
                self.give_back(copied)
            raise

    def close(self) -> None:
        """Let go of the arenas."""
        if self._tier is not None:
            self._tier.close()
        self._tier = None

    def _take(self, draft: Manifest, shards: Sequence[Shard], captured: Captured, *, keep: bool) -> Taken | None:
        begun_s = self._clock.monotonic_s()
        kept = self.kept and bool(captured.cuts) == self.parts
        whole, part = kept and not self.parts, kept and self.parts
        rest = _rest(captured, shards) if whole else []

        def take(tier: MemoryTier) -> Taken | None:
            return tier.take(draft, [*shards, *rest], rank=self._group.rank, whole=whole, part=part, keep=keep)

        taken = self._guarded(take)
        if taken is None:
            self._skipped += self._tier is not None
        elif kept:
            self._tell(draft, taken, begun_s)
        return taken

    def _tell(self, draft: Manifest, taken: Taken, begun_s: float) -> None:
        now_s = self._clock.monotonic_s()
        interval_s = None if self._last_s is None else now_s - self._last_s
        if self._group.rank == 0:
            self._emit(
                events.CheckpointSaved(
                    iteration=draft.iteration,
                    consumed_samples=draft.consumed_samples,
                    bytes=taken.size_bytes,
                    seconds=now_s - begun_s,
                    interval_s=interval_s,
                    tier="memory",
                    stall_s=now_s - begun_s,
                    skipped=self._skipped,
                )
            )
        self._last_s, self._skipped = now_s, 0

    def _guarded(self, work: Callable[[MemoryTier], Taken | None]) -> Taken | None:
        """Do it if there is a tier; where it finds no room the tier is given up, or training is not begun."""
        if self._tier is None:
            return None
        try:
            return work(self._tier)
        except NoRoom as error:
            if self._required:
                raise UsageError(f"{error}; or let training go on without it: checkpoint.memory_required: false") from (
                    error
                )
            self._emit(events.Notice(text=f"{error}. Training goes on without it"))
            self.close()
            return None


def open_snapshots(
    settings: Settings, tier: MemoryTier | None, *, group: Group, emit: events.Emit, clock: Clock
) -> Snapshots:
    """The memory tier of one worker, used as the settings say."""
    return Snapshots(
        tier if settings.enable_save else None,
        group=group,
        # Weights alone are nothing that a restart could go on from.
        every_steps=0 if settings.no_save_optim else settings.memory_every_steps,
        required=settings.memory_required,
        peers=settings.memory_peers > 0,
        emit=emit,
        clock=clock,
    )


def _rest(captured: Captured, shards: Sequence[Shard]) -> list[Shard]:
    """What these shards leave out of a state, as shards that are never written to disk."""
    parts: dict[ShardKind, Mapping[str, Tensor]] = {ShardKind.MODEL: captured.model, ShardKind.OPT: captured.opt}
    rest = []
    for kind, tensors in parts.items():
        there = {name for shard in shards if shard.kind is kind for name in shard.tensors}
        left = {name: tensor for name, tensor in tensors.items() if name not in there}
        if left:
            rest.append(Shard(name=shard_name(kind, index=0, total=1, prefix="rest"), kind=kind, tensors=left))
    return rest
