"""The door to checkpoints: restore at a start, save when due. Every rank calls every method, in the same order."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from elastic import events
from elastic.checkpoint.background import Start, at_once, in_thread
from elastic.checkpoint.caretaker import Caretaker
from elastic.checkpoint.draft import SaveMeta, common_of, draft_of
from elastic.checkpoint.flight import Flight, SaveResult, unsaved
from elastic.checkpoint.image import Image
from elastic.checkpoint.layout import Health
from elastic.checkpoint.locating import storage_for
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.memory import MemoryTier
from elastic.checkpoint.outcome import Outcome
from elastic.checkpoint.places import Places
from elastic.checkpoint.policy import SaveVerdict, judge_health, save_due
from elastic.checkpoint.reader import Reader
from elastic.checkpoint.restored import Restored
from elastic.checkpoint.root import RootIdentity
from elastic.checkpoint.saving_apart import begin_saving
from elastic.checkpoint.seams import Committer, Group, Settings, check_settings
from elastic.checkpoint.snapshots import Snapshots
from elastic.checkpoint.state import Captured, capture, dealt_out
from elastic.checkpoint.storage import Storage
from elastic.checkpoint.taking import Taker
from elastic.clock import SYSTEM_CLOCK, Clock
from elastic.config.model import SaveMode, SaveOverlap
from elastic.errors import Fenced, UsageError

_ANCESTORS = 64
"""How many committed iterations before it a manifest names, at least."""


class CheckpointManager:
    """Restores and saves the tracked objects of one worker in one generation. Not for several threads."""

    def __init__(
        self, settings: Settings, *, identity: RootIdentity | None, group: Group, committer: Committer,
        emit: events.Emit, storage: Storage | None = None, clock: Clock = SYSTEM_CLOCK, prefix: str = "checkpoint",
        nonce: Callable[[], str] = lambda: secrets.token_hex(6), generation: int | None = None,
        tier: MemoryTier | None = None, places: Places | None = None,
    ) -> None:  # fmt: skip
        """`identity`: what `claim` gave for save_path; None where nothing is saved. `committer`: asked by rank 0.

        `generation`: that of this start; with it, a restore adopts what an earlier generation left complete. `tier`:
        where states are copied to; without it a save makes its copy on the heap. `places`: see places.py.

        Raises:
            UsageError: settings that contradict one another or are not there yet.
        """
        check_settings(settings, claimed=identity is not None)
        self._settings = settings
        self._identity = identity
        self._group = group
        self._committer = committer
        self._emit = emit
        self._storage: Storage = storage or storage_for(
            settings.save_path, settings.load_path, settings.checkpoint_path
        )
        self._clock = clock
        self._taker = Taker(group=group, places=places, prefix=prefix, weights_only=settings.no_save_optim)
        self._nonce = nonce
        self._generation = generation
        self._places = places
        self._every_steps, self._by_distance, self._began_at = settings.save_interleaved_steps, False, 0
        self._committed: int | None = None
        self._failed_at: int | None = None
        self._failures = self._skipped = 0
        self._ancestors: tuple[str, ...] = ()
        self._saved_at_s: float | None = None
        self._start: Start = in_thread if settings.save_mode == SaveMode.ASYNC else at_once
        self._flight: Flight | None = None
        self._caretaker: Caretaker | None = None
        if identity is not None and settings.enable_save and (group.rank == 0 if places is None else places.lead):
            self._caretaker = Caretaker(
                settings,
                lineage=identity.lineage,
                storage=self._storage,
                committer=committer,
                nonce=nonce,
                emit=emit,
                start=self._start,
            )
        self._snapshots = Snapshots(
            tier if settings.enable_save else None,
            rank=group.rank,
            # Weights alone are nothing that a restart could go on from.
            every_steps=0 if settings.no_save_optim else settings.memory_every_steps,
            required=settings.memory_required,
            emit=emit,
            clock=clock,
        )

    def restore(self, tracked: Mapping[str, Any], *, recall: bool = True) -> Restored:
        """Put the state to start from into the tracked objects, or leave them where the run begins.

        `recall`: whether a copy in memory will do, which may be newer than what was saved.

        Raises:
            NothingToRestore: state should be there and is not.
            CheckpointError: the state does not fit the tracked objects, or these cannot be saved later.
        """
        begun_s = self._clock.monotonic_s()
        # What cannot be saved must come to light before the first step, not at the first save.
        if self._settings.enable_save:
            self._snapshots.check(capture(tracked, weights_only=self._settings.no_save_optim))
        reader = Reader(
            self._settings,
            self._identity,
            group=self._group,
            storage=self._storage,
            emit=self._tell,
            committer=self._committer,
            nonce=self._nonce,
            clock=self._clock,
            generation=self._generation,
            tier=self._snapshots.tier,
            places=self._places,
        )
        restored = reader.restore(tracked, recall=recall)
        self._snapshots.forget_newer(restored.iteration)
        self._began_at = restored.iteration
        if restored.own:
            self._committed, self._ancestors = reader.durable, reader.ancestors
            if self._caretaker is not None:
                self._caretaker.set_aside_newer(restored.iteration)
        self._emit(
            events.Restored(
                tier=restored.tier,
                iteration=restored.iteration,
                consumed_samples=restored.consumed_samples,
                seconds=self._clock.monotonic_s() - begun_s,
                reason=restored.reason,
            )
        )
        return restored

    def due(self, iteration: int, *, counted: range | None = None) -> bool:
        """Whether the step just taken is to be followed by a save. `counted`: see `save_due`."""
        return self.verdict(iteration, counted=counted).due

    def behind(self, iteration: int) -> bool:
        """Whether a save is missing between what is durable and this iteration, which was restored from memory."""
        every, durable = self._every_steps, self._committed or 0
        return self._settings.enable_save and iteration // every > durable // every

    def verdict(self, iteration: int, *, counted: range | None = None) -> SaveVerdict:
        """The same with the reason."""
        return save_due(
            iteration,
            enable_save=self._settings.enable_save,
            every_steps=self._every_steps,
            last_saved=self._last_saved(),
            failed_at=self._failed_at if self._flight is None else None,  # one that is under way is the next try
            failures=self._failures,
            counted=counted,
            by_distance=self._by_distance,
        )

    def _last_saved(self) -> int | None:
        """What a save under way will be counts for a distance; and before the first one, where training began."""
        if self._flight is not None and self._by_distance:
            return self._flight.meta.iteration
        return self._began_at if self._committed is None and self._by_distance else self._committed

    def pace(self, *, every_steps: int) -> None:
        """From here on a save is due this many steps after the last one, whatever was set. The same on all ranks."""
        self._every_steps, self._by_distance = every_steps, True

    @property
    def ready(self) -> bool:
        """Whether this rank has nothing left to do for the save under way. Cheap: asked at every step."""
        return self._flight is None or self._flight.saving.ready

    def advance(self, *, all_ready: bool) -> SaveResult | None:
        """At a step boundary: go on with the save under way. `all_ready`: whether all ranks were, as the step agreed.

        Returns how a save ended, if one did. Raises as `save`.
        """
        flight, result = self._flight, None
        if flight is not None:
            if flight.copied is not None and flight.saving.written:
                self._snapshots.give_back(flight.copied)
            if all_ready:
                begun_s = self._clock.monotonic_s()
                outcome = flight.saving.advance()
                stall_s = flight.stall_s + self._clock.monotonic_s() - begun_s
                flight = self._flight = replace(flight, stall_s=stall_s)
                result = None if outcome is None else self._ended(flight, outcome)
        if self._caretaker is not None:
            self._caretaker.make_room(wait=False)
        return result

    def settle(self) -> SaveResult | None:
        """Wait for the save under way, if there is one. Every rank calls it at the same boundary. Raises as `save`."""
        result = None
        while self._flight is not None:
            result = self.advance(all_ready=True)
        if self._caretaker is not None:
            self._caretaker.make_room(wait=True)
        return result

    def save(self, tracked: Mapping[str, Any], meta: SaveMeta, *, wait: bool = True) -> SaveResult:
        """Save and commit. A failure is an event and the last good iteration stays; training goes on.

        Without `wait` it may still be under way on return: `advance` at each boundary brings it to its end.

        Raises:
            Fenced: a newer generation exists.
            PeerLost: from the group.
        """
        if not self._settings.enable_save or self._identity is None:
            return unsaved(meta, "saving is off")
        if self._flight is not None and not wait and self._settings.save_overlap == SaveOverlap.SKIP:
            self._skipped += 1
            return unsaved(meta, f"iteration {self._flight.meta.iteration} is still being written")
        earlier = self.settle()
        if meta.iteration == self._committed:
            reason = "this iteration is the committed one already"
            found = unsaved(meta, reason, earlier=earlier)
            return replace(found, saved=True)
        self._flight = self._begin(tracked, meta, self._identity)
        if wait or self._start is at_once:
            ended = self.settle()
            assert ended is not None  # there was a save under way
            return replace(ended, earlier=earlier)
        return unsaved(meta, "it is being written", earlier=earlier)

    def snapshot_due(self, iteration: int) -> bool:
        """Whether the step just taken is to be followed by a copy in memory. The same on all ranks."""
        return self._settings.enable_save and self._snapshots.due(iteration)

    def snapshot(self, tracked: Mapping[str, Any], meta: SaveMeta) -> None:
        """Copy the state for a restart of this node's workers, if there is a memory tier for it."""
        if self._identity is None or not self._snapshots.kept:
            return
        captured = capture(tracked)
        draft = self._draft(meta, self._identity, captured, judge_health(meta.signs).status)
        self._snapshots.keep(draft, self._taker.to_keep(captured), captured)

    def close(self) -> None:
        """Give up what is under way, and the memory tier."""
        self._snapshots.close()

    def _ended(self, flight: Flight, outcome: Outcome) -> SaveResult:
        self._flight, meta = None, flight.meta
        if flight.copied is not None:
            self._snapshots.give_back(flight.copied)
        seconds = self._clock.monotonic_s() - flight.begun_s
        stall_s = seconds if self._start is at_once else flight.stall_s
        if outcome.stale:
            self._tell(events.Fencing(what="checkpoint", reason=outcome.reason))
            raise Fenced(f"iteration {meta.iteration} was not committed: {outcome.reason}")
        if outcome.fenced:
            self._tell(events.Fencing(what="checkpoint", reason=f"the tracker was left alone: {outcome.fenced}"))
        if outcome.committed:
            self._failed_at, self._failures = None, 0
            self._after_commit(meta, outcome, seconds=seconds, stall_s=stall_s)
        else:
            self._failed_at, self._failures = meta.iteration, self._failures + 1
            self._tell(events.CheckpointFailed(iteration=meta.iteration, reason=outcome.reason))
        return SaveResult(
            saved=outcome.committed,
            iteration=meta.iteration,
            total_bytes=outcome.total_bytes,
            seconds=seconds,
            reason=outcome.reason,
            stall_s=stall_s,
        )

    def _begin(self, tracked: Mapping[str, Any], meta: SaveMeta, identity: RootIdentity) -> Flight:
        begun_s = self._clock.monotonic_s()
        captured, copied, fault = Captured(model={}, opt={}, values={}), None, None
        health = judge_health(meta.signs)
        own = self._taker.own_to_save(dealt_out=dealt_out(tracked))
        try:
            captured = capture(tracked, weights_only=self._settings.no_save_optim)
            draft = self._draft(meta, identity, captured, health.status)
            copied = self._snapshots.copy(draft, self._taker.to_save(captured, own), captured)
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 - because peers wait for the vote; state_dict is the user's
            draft, fault = self._draft(meta, identity, captured, health.status), error

        def images() -> Sequence[Image]:
            if fault is not None or copied is None:
                raise fault or AssertionError
            return copied.images

        if health.status is Health.ABNORMAL:
            self._tell(events.Notice(text=f"iteration {meta.iteration} is saved as unhealthy: {health.reason}"))
        saving = begin_saving(
            draft,
            common_of(meta, tracked, health.status),
            images,
            root=self._settings.save_path,
            storage=self._storage,
            group=self._group,
            places=self._places,
            committer=self._committer,
            nonce=self._nonce,
            clock=self._clock,
            start=self._start,
        )
        stall_s = self._clock.monotonic_s() - begun_s
        return Flight(saving=saving, meta=meta, copied=copied, begun_s=begun_s, stall_s=stall_s)

    def _draft(self, meta: SaveMeta, identity: RootIdentity, captured: Captured, health: Health | None) -> Manifest:
        return draft_of(
            meta,
            identity=identity,
            values=captured.values,
            health=health,
            world_size=self._group.size,
            has_optimizer=not self._settings.no_save_optim,
            ancestors=self._ancestors[-max(_ANCESTORS, self._settings.save_max) :],
        )

    def _after_commit(self, meta: SaveMeta, outcome: Outcome, *, seconds: float, stall_s: float) -> None:
        now_s = self._clock.monotonic_s()
        interval_s = None if self._saved_at_s is None else now_s - self._saved_at_s
        self._saved_at_s, self._committed = now_s, meta.iteration
        self._ancestors += (outcome.manifest_digest,)
        self._tell(
            events.CheckpointSaved(
                iteration=meta.iteration,
                consumed_samples=meta.consumed_samples,
                bytes=outcome.total_bytes,
                seconds=seconds,
                interval_s=interval_s,
                stall_s=stall_s,
                skipped=self._skipped,
            )
        )
        self._skipped = 0
        if outcome.left_out:
            self._tell(events.Notice(text=f"iteration {meta.iteration} is not kept everywhere: {outcome.left_out}"))
        if self._caretaker is not None:
            self._caretaker.begin(meta.iteration, outcome.manifest_digest)

    def _tell(self, event: events.Event) -> None:
        """What all ranks know is told once."""
        if self._group.rank == 0:
            self._emit(event)
