"""The door to checkpoints: restore at a start, save when due. Every rank calls every method, in the same order."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from elastic import events
from elastic.checkpoint.arrivals import Arrivals
from elastic.checkpoint.draft import SaveMeta
from elastic.checkpoint.flight import SaveResult
from elastic.checkpoint.locating import storage_for
from elastic.checkpoint.memory import MemoryTier
from elastic.checkpoint.places import Places
from elastic.checkpoint.policy import judge_health
from elastic.checkpoint.reader import Reader
from elastic.checkpoint.rejoining import Kept, Rejoining
from elastic.checkpoint.restored import Restored
from elastic.checkpoint.root import RootIdentity
from elastic.checkpoint.saver import Saver, Service
from elastic.checkpoint.schedule import Schedule
from elastic.checkpoint.seams import Committer, Group, Settings, check_settings
from elastic.checkpoint.snapshots import open_snapshots
from elastic.checkpoint.state import capture, dealt_out
from elastic.checkpoint.storage import Storage
from elastic.checkpoint.telling import restored_event
from elastic.clock import SYSTEM_CLOCK, Clock


class CheckpointManager:
    """Restores and saves the tracked objects of one worker in one generation. Not for several threads."""

    def __init__(
        self, settings: Settings, *, identity: RootIdentity | None, group: Group, committer: Committer,
        emit: events.Emit, storage: Storage | None = None, clock: Clock = SYSTEM_CLOCK, prefix: str = "checkpoint",
        nonce: Callable[[], str] = lambda: secrets.token_hex(6), generation: int | None = None,
        tier: MemoryTier | None = None, places: Places | None = None, others_may_hold: bool = False,
    ) -> None:  # fmt: skip
        """`identity`: what `claim` gave for save_path; None where nothing is saved. `committer`: asked by rank 0.

        `generation`: that of this start; with it, a restore adopts what an earlier generation left complete. `tier`:
        where states are copied to; without it a save makes its copy on the heap. `places`: see places.py.
        `others_may_hold`: see `Service`.

        Raises:
            UsageError: settings that contradict one another or are not there yet.
        """
        check_settings(settings, claimed=identity is not None)
        self._settings, self._emit, self._clock, self._nonce = settings, emit, clock, nonce
        self._arrivals = Arrivals(clock)
        self._storage: Storage = storage or storage_for(
            settings.save_path, settings.load_path, settings.checkpoint_path
        )
        self.intact = True
        """Whether what is tracked is one whole state; not while another one is being put in its place."""
        self._snapshots = open_snapshots(settings, tier, group=group, emit=emit, clock=clock)
        self._saver = Saver(
            settings,
            storage=self._storage,
            snapshots=self._snapshots,
            emit=emit,
            clock=clock,
            nonce=nonce,
            prefix=prefix,
        )
        self.serve(
            identity, group=group, committer=committer, generation=generation, places=places,
            others_may_hold=others_may_hold,
        )  # fmt: skip

    @property
    def schedule(self) -> Schedule:
        """When a save is due; the same on all ranks."""
        return self._saver.schedule

    def serve(
        self, identity: RootIdentity | None, *, group: Group, committer: Committer, generation: int | None = None,
        places: Places | None = None, others_may_hold: bool = False,
    ) -> None:  # fmt: skip
        """Work in another generation from here on; a save under way in the one before is given up."""
        self._service = Service(
            identity=identity,
            group=group,
            committer=committer,
            generation=generation,
            places=places,
            others_may_hold=others_may_hold,
        )
        self._saver.serve(self._service)

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
        service = self._service
        reader = Reader(
            self._settings,
            service.identity,
            group=service.group,
            storage=self._storage,
            emit=self._tell,
            committer=service.committer,
            nonce=self._nonce,
            clock=self._clock,
            generation=service.generation,
            tier=self._snapshots.tier,
            places=service.places,
            others_may_hold=service.others_may_hold,
            arrivals=self._arrivals,
        )
        restored = reader.restore(tracked, recall=recall)
        self._snapshots.forget_newer(restored.iteration)
        self.schedule.began_at = restored.iteration
        if restored.own:
            self._saver.go_on_from(durable=reader.durable, ancestors=reader.ancestors)
            self._saver.set_aside_newer(restored.iteration)
        self.intact, self.schedule.began_at = True, restored.iteration
        self._tell_restored(restored, seconds=self._clock.monotonic_s() - begun_s)
        return restored

    def rejoin(self, tracked: Mapping[str, Any], meta: SaveMeta | None) -> Restored | None:
        """Go on from the state that some ranks have kept, where that may be; None: `restore` it. Every rank calls it.

        `meta`: where this rank stands with the tracked objects; None: nowhere.

        Raises:
            Fenced: a newer generation exists. PeerLost: see `intact`.
        """
        service = self._service
        if service.generation is None:
            return None
        begun_s, captured, kept = self._clock.monotonic_s(), capture(tracked), None
        if meta is not None and service.identity is not None:
            manifest = self._saver.draft(meta, captured, judge_health(meta.signs).status)
            kept = Kept(manifest=manifest, durable=self.schedule.committed or 0, captured=captured)
        meeting = Rejoining(
            service.group,
            generation=service.generation,
            committer=service.committer,
            arrivals=self._arrivals,
            emit=self._tell,
        )
        images = lambda: self._saver.taker.whole(captured)  # noqa: E731
        try:
            rejoined = meeting.meet(kept, tracked, held=self._snapshots.held(), images=images)
        finally:
            self.intact = self.intact and meeting.intact
        if rejoined is None:
            return None
        self.intact = True
        self._saver.go_on_from(durable=rejoined.standing.durable, ancestors=rejoined.standing.ancestors)
        self._snapshots.forget_newer(rejoined.restored.iteration)
        self._tell_restored(rejoined.restored, seconds=self._clock.monotonic_s() - begun_s)
        return rejoined.restored

    def due(self, iteration: int, *, counted: range | None = None) -> bool:
        """Whether the step just taken is to be followed by a save. `counted`: see `save_due`."""
        return self.schedule.verdict(iteration, counted=counted, under_way=self._saver.under_way).due

    @property
    def ready(self) -> bool:
        """Whether this rank has nothing left to do for the save under way. Cheap: asked at every step."""
        return self._saver.ready

    def advance(self, *, all_ready: bool) -> SaveResult | None:
        """At a step boundary: go on with the save under way. `all_ready`: whether all ranks were, as the step agreed.

        Returns how a save ended, if one did. Raises as `save`.
        """
        return self._saver.advance(all_ready=all_ready)

    def settle(self) -> SaveResult | None:
        """Wait for the save under way, if there is one. Every rank calls it at the same boundary. Raises as `save`."""
        return self._saver.settle()

    def save(self, tracked: Mapping[str, Any], meta: SaveMeta, *, wait: bool = True) -> SaveResult:
        """Save and commit. A failure is an event and the last good iteration stays; training goes on.

        Without `wait` it may still be under way on return: `advance` at each boundary brings it to its end.

        Raises:
            Fenced: a newer generation exists.
            PeerLost: from the group.
        """
        return self._saver.save(tracked, meta, wait=wait)

    @property
    def saving(self) -> bool:
        """Whether a save is under way."""
        return self._saver.under_way is not None

    def snapshot_due(self, iteration: int) -> bool:
        """Whether the step just taken is to be followed by a copy in memory. The same on all ranks."""
        return self._settings.enable_save and self._snapshots.due(iteration)

    def snapshot(self, tracked: Mapping[str, Any], meta: SaveMeta) -> bool:
        """Copy the state for a restart of this node's workers, if there is a memory tier for it; whether it was."""
        return self._saver.keep(tracked, meta)

    def close(self) -> None:
        """Give up what is under way, and the memory tier."""
        self._snapshots.close()

    def _tell_restored(self, restored: Restored, *, seconds: float) -> None:
        self._emit(restored_event(restored, seconds=seconds, arrived=self._arrivals.told()))

    def _tell(self, event: events.Event) -> None:
        """What all ranks know is told once."""
        if self._service.group.rank == 0:
            self._emit(event)
