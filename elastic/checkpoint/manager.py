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
from elastic.checkpoint.policy import judge_health
from elastic.checkpoint.reader import Reader
from elastic.checkpoint.rejoining import Kept, Rejoining
from elastic.checkpoint.restored import Restored
from elastic.checkpoint.root import RootIdentity
from elastic.checkpoint.saving_apart import begin_saving
from elastic.checkpoint.schedule import Schedule
from elastic.checkpoint.seams import Committer, Group, Settings, check_settings
from elastic.checkpoint.snapshots import open_snapshots
from elastic.checkpoint.state import Captured, capture, dealt_out
from elastic.checkpoint.storage import Storage
from elastic.checkpoint.taking import Taker
from elastic.checkpoint.telling import restored_event, saved_event
from elastic.clock import SYSTEM_CLOCK, Clock
from elastic.config.choices import SaveMode, SaveOverlap
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
        self._emit = emit
        self._storage: Storage = storage or storage_for(
            settings.save_path, settings.load_path, settings.checkpoint_path
        )
        self._clock, self._prefix, self._nonce = clock, prefix, nonce
        self.intact = True
        """Whether what is tracked is one whole state; not while another one is being put in its place."""
        self.schedule = Schedule(settings)
        """When a save is due; the same on all ranks."""
        self._ancestors: tuple[str, ...] = ()
        self._saved_at_s: float | None = None
        self._start: Start = in_thread if settings.save_mode == SaveMode.ASYNC else at_once
        self._flight: Flight | None = None
        self._left, self._skipped = list[Flight](), 0
        self._snapshots = open_snapshots(settings, tier, group=group, emit=emit, clock=clock)
        self.serve(identity, group=group, committer=committer, generation=generation, places=places)

    def serve(
        self, identity: RootIdentity | None, *, group: Group, committer: Committer, generation: int | None = None,
        places: Places | None = None,
    ) -> None:  # fmt: skip
        """Work in another generation from here on; a save under way in the one before is given up."""
        if self._flight is not None:
            self._left.append(self._flight)
        self._identity, self._group, self._committer, self._flight = identity, group, committer, None
        self._generation, self._places, weights_only = generation, places, self._settings.no_save_optim
        self._taker = Taker(group=group, places=places, prefix=self._prefix, weights_only=weights_only)
        self._snapshots.serve(group)
        self._caretaker: Caretaker | None = None
        lead = group.rank == 0 if places is None else places.lead
        if identity is not None and self._settings.enable_save and lead:
            self._caretaker = Caretaker(
                self._settings,
                lineage=identity.lineage,
                storage=self._storage,
                committer=committer,
                nonce=self._nonce,
                emit=self._emit,
                start=self._start,
            )

    def restore(self, tracked: Mapping[str, Any], *, recall: bool = True) -> Restored:
        """Put the state to start from into the tracked objects, or leave them where the run begins.

        `recall`: whether a copy in memory will do, which may be newer than what was saved.

        Raises:
            NothingToRestore: state should be there and is not.
            CheckpointError: the state does not fit the tracked objects, or these cannot be saved later.
        """
        begun_s, self.intact = self._clock.monotonic_s(), False
        if self._settings.enable_save:
            self._snapshots.settle(parts=dealt_out(tracked))
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
        self.schedule.began_at = restored.iteration
        if restored.own:
            self.schedule.committed, self._ancestors = reader.durable, reader.ancestors
            if self._caretaker is not None:
                self._caretaker.set_aside_newer(restored.iteration)
        self.intact, self.schedule.began_at = True, restored.iteration
        self._emit(restored_event(restored, seconds=self._clock.monotonic_s() - begun_s))
        return restored

    def rejoin(self, tracked: Mapping[str, Any], meta: SaveMeta | None) -> Restored | None:
        """Go on from the state that some ranks have kept, where that may be; None: `restore` it. Every rank calls it.

        `meta`: where this rank stands with the tracked objects; None: nowhere.

        Raises:
            Fenced: a newer generation exists. PeerLost: see `intact`.
        """
        if self._generation is None:
            return None
        begun_s, captured, kept = self._clock.monotonic_s(), capture(tracked), None
        if meta is not None and self._identity is not None:
            manifest = self._draft(meta, self._identity, captured, judge_health(meta.signs).status)
            kept = Kept(manifest=manifest, durable=self.schedule.committed or 0, captured=captured)
        meeting = Rejoining(self._group, generation=self._generation, committer=self._committer, emit=self._tell)
        images = lambda: self._taker.whole(captured)  # noqa: E731
        try:
            rejoined = meeting.meet(kept, tracked, held=self._snapshots.held(), images=images)
        finally:
            self.intact = self.intact and meeting.intact
        if rejoined is None:
            return None
        self.intact = True
        self.schedule.committed, self._ancestors = rejoined.standing.durable, rejoined.standing.ancestors
        self._snapshots.forget_newer(rejoined.restored.iteration)
        self._emit(restored_event(rejoined.restored, seconds=self._clock.monotonic_s() - begun_s))
        return rejoined.restored

    def due(self, iteration: int, *, counted: range | None = None) -> bool:
        """Whether the step just taken is to be followed by a save. `counted`: see `save_due`."""
        under_way = None if self._flight is None else self._flight.meta.iteration
        return self.schedule.verdict(iteration, counted=counted, under_way=under_way).due

    @property
    def ready(self) -> bool:
        """Whether this rank has nothing left to do for the save under way. Cheap: asked at every step."""
        return self._flight is None or self._flight.saving.ready

    def advance(self, *, all_ready: bool) -> SaveResult | None:
        """At a step boundary: go on with the save under way. `all_ready`: whether all ranks were, as the step agreed.

        Returns how a save ended, if one did. Raises as `save`.
        """
        flight, result = self._flight, None
        self._give_back()
        if flight is not None and all_ready:
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
        if meta.iteration == self.schedule.committed:
            return replace(unsaved(meta, "this iteration is the committed one already", earlier=earlier), saved=True)
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
        if self._identity is None or not (self._snapshots.kept or self._snapshots.shares):
            return
        captured = capture(tracked)
        draft = self._draft(meta, self._identity, captured, judge_health(meta.signs).status)
        self._snapshots.keep(draft, self._taker.to_keep(captured), captured)

    def close(self) -> None:
        """Give up what is under way, and the memory tier."""
        self._snapshots.close()

    def _give_back(self) -> None:
        """Memory that nobody reads any more may be written again."""
        for flight in (*self._left, *((self._flight,) if self._flight is not None else ())):
            # Of parts only when that is known of all ranks: they choose the next arena alike.
            if flight.copied is not None and flight.saving.written and not self._snapshots.parts:
                self._snapshots.give_back(flight.copied)
        self._left = [each for each in self._left if not each.saving.written]

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
        result = SaveResult(
            saved=outcome.committed,
            iteration=meta.iteration,
            total_bytes=outcome.total_bytes,
            seconds=seconds,
            reason=outcome.reason,
            stall_s=stall_s,
        )
        if outcome.committed:
            self.schedule.saved(meta.iteration)
            self._after_commit(meta, outcome, result)
        else:
            self.schedule.failed(meta.iteration)
            self._tell(events.CheckpointFailed(iteration=meta.iteration, reason=outcome.reason))
        return result

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

        self._snapshots.share(draft, None if copied is None else copied.taken)  # outside: all ranks do

        def images() -> Sequence[Image]:
            if fault is not None or copied is None:
                raise fault or AssertionError
            return copied.images

        if health.status is Health.ABNORMAL:
            self._tell(events.Notice(text=f"iteration {meta.iteration} is saved as unhealthy: {health.reason}"))
        with self._snapshots.lending(copied):
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

    def _after_commit(self, meta: SaveMeta, outcome: Outcome, result: SaveResult) -> None:
        now_s = self._clock.monotonic_s()
        interval_s = None if self._saved_at_s is None else now_s - self._saved_at_s
        self._saved_at_s = now_s
        self._ancestors += (outcome.manifest_digest,)
        self._tell(saved_event(meta, result, interval_s=interval_s, skipped=self._skipped))
        self._skipped = 0
        if outcome.left_out:
            self._tell(events.Notice(text=f"iteration {meta.iteration} is not kept everywhere: {outcome.left_out}"))
        if self._caretaker is not None:
            self._caretaker.begin(meta.iteration, outcome.manifest_digest)

    def _tell(self, event: events.Event) -> None:
        """What all ranks know is told once."""
        if self._group.rank == 0:
            self._emit(event)
