"""Saving for one worker: from the copy of its state to the commit, one save under way at a time, told as events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from elastic import events
from elastic.checkpoint.background import Start, at_once, in_thread
from elastic.checkpoint.caretaker import Caretaker
from elastic.checkpoint.draft import SaveMeta, common_of, draft_of
from elastic.checkpoint.flight import Flight, GivenUp, SaveResult, outlast, release, stalls, unsaved
from elastic.checkpoint.image import Image
from elastic.checkpoint.layout import Health
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.outcome import Outcome
from elastic.checkpoint.places import Places
from elastic.checkpoint.policy import judge_health
from elastic.checkpoint.root import RootIdentity
from elastic.checkpoint.saving_apart import begin_saving
from elastic.checkpoint.schedule import Schedule
from elastic.checkpoint.seams import Committer, Group, Settings
from elastic.checkpoint.snapshots import Snapshots
from elastic.checkpoint.state import Captured, capture, dealt_out
from elastic.checkpoint.storage import Storage
from elastic.checkpoint.taking import Taker
from elastic.checkpoint.telling import saved_event
from elastic.clock import Clock
from elastic.config.choices import SaveMode, SaveOverlap
from elastic.errors import Fenced, UsageError

_ANCESTORS = 64
"""How many committed iterations before it a manifest names, at least."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """The generation that is served, and what it is served with."""

    identity: RootIdentity | None
    """What `claim` gave for save_path; None where nothing is saved."""
    group: Group
    committer: Committer
    """Asked by rank 0."""
    generation: int | None = None
    places: Places | None = None
    """The directories that save_path is, where nodes do not share one."""
    others_may_hold: bool = False
    """Whether nodes that are not here may hold more of this run than these do, and it is worth waiting for them."""


class Saver:
    """Every rank has one and calls its methods in the same order. Not for several threads."""

    def __init__(
        self, settings: Settings, *, storage: Storage, snapshots: Snapshots, emit: events.Emit, clock: Clock,
        nonce: Callable[[], str], prefix: str,
    ) -> None:  # fmt: skip
        self._settings, self._storage, self._snapshots = settings, storage, snapshots
        self._emit, self._clock, self._nonce, self._prefix = emit, clock, nonce, prefix
        self.schedule = Schedule(settings)
        """When a save is due; the same on all ranks."""
        self._ancestors: tuple[str, ...] = ()
        self._saved_at_s: float | None = None
        self._start: Start = in_thread if settings.save_mode == SaveMode.ASYNC else at_once
        self._flight: Flight | None = None
        self._left, self._skipped, self._usual_s = list[Flight](), 0, 0.0
        self._given_up = list[GivenUp]()

    def serve(self, service: Service) -> None:
        """Work in this generation from here on; a save under way in the one before is given up."""
        self._given_up = [each for each in self._given_up if not each.working.done()]
        if (flight := self._flight) is not None:
            at = flight.meta
            left = GivenUp(iteration=at.iteration, generation=at.generation, working=flight.saving.give_up())
            self._given_up.append(left)
            self._left.append(flight)
        self._left = release(self._left, None, self._snapshots)
        self._flight, self._service = None, service
        self._group, places, weights_only = service.group, service.places, self._settings.no_save_optim
        self.taker = Taker(group=self._group, places=places, prefix=self._prefix, weights_only=weights_only)
        self._snapshots.serve(self._group)
        self._caretaker: Caretaker | None = None
        lead = self._group.rank == 0 if places is None else places.lead
        if service.identity is not None and self._settings.enable_save and lead:
            self._caretaker = Caretaker(
                self._settings,
                lineage=service.identity.lineage,
                storage=self._storage,
                committer=service.committer,
                nonce=self._nonce,
                emit=self._emit,
                start=self._start,
            )

    def go_on_from(self, *, durable: int, ancestors: tuple[str, ...]) -> None:
        """Training goes on from a state of this run: what was committed last, and all that led there."""
        self.schedule.committed, self._ancestors = durable, ancestors

    def set_aside_newer(self, iteration: int) -> None:
        """What lies beyond the restored state led nowhere."""
        if self._caretaker is not None:
            self._caretaker.set_aside_newer(iteration)

    @property
    def under_way(self) -> int | None:
        """The iteration that is being saved."""
        return None if self._flight is None else self._flight.meta.iteration

    def draft(self, meta: SaveMeta, captured: Captured, health: Health | None) -> Manifest:
        """The manifest of a state, without its files. There is an identity."""
        assert self._service.identity is not None
        return draft_of(
            meta,
            identity=self._service.identity,
            values=captured.values,
            health=health,
            world_size=self._group.size,
            has_optimizer=not self._settings.no_save_optim,
            ancestors=self._ancestors[-max(_ANCESTORS, self._settings.save_max) :],
        )

    @property
    def ready(self) -> bool:
        """Whether this rank has nothing left to do for the save under way. Cheap: asked at every step."""
        return self._flight is None or self._flight.saving.ready

    def advance(self, *, all_ready: bool) -> SaveResult | None:
        """At a step boundary: go on with the save under way. `all_ready`: whether all ranks were, as the step agreed.

        Returns how a save ended, if one did. Raises as `save`.
        """
        flight, result = self._flight, None
        self._left = release(self._left, flight, self._snapshots)
        if flight is not None and all_ready:
            begun_s = self._clock.monotonic_s()
            outcome = flight.saving.advance()
            stall_s = flight.stall_s + self._clock.monotonic_s() - begun_s
            flight = self._flight = replace(flight, stall_s=stall_s)
            result = None if outcome is None else self._ended(flight, outcome)
        if self._caretaker is not None:
            self._caretaker.look(wait=False)
        return result

    def settle(self) -> SaveResult | None:
        """Wait for the save under way, if there is one, and until there is room again. Every rank calls it at the same
        boundary. Raises as `save`."""
        result = self._land()
        if self._caretaker is not None:
            self._caretaker.look(wait=True)
        return result

    def save(self, tracked: Mapping[str, Any], meta: SaveMeta, *, wait: bool = True) -> SaveResult:
        """Save and commit. A failure is an event and the last good iteration stays; training goes on.

        Without `wait` it may still be under way on return: `advance` at each boundary brings it to its end.

        Raises:
            Fenced: a newer generation exists.
            PeerLost: from the group.
        """
        if not self._settings.enable_save or self._service.identity is None:
            return unsaved(meta, "saving is off")
        if why := outlast(self._given_up, generation=meta.generation, clock=self._clock):
            return unsaved(meta, why)
        earlier, why = (self._land(), "") if wait else self._clear()
        if why:
            self._skipped += 1
            return unsaved(meta, why)
        if meta.iteration == self.schedule.committed:
            return replace(unsaved(meta, "this iteration is the committed one already", earlier=earlier), saved=True)
        self._flight = self._begin(tracked, meta)
        if wait or self._start is at_once:
            ended = self.settle()
            assert ended is not None  # there was a save under way
            return replace(ended, earlier=earlier)
        return unsaved(meta, "it is being written", earlier=earlier)

    def keep(self, tracked: Mapping[str, Any], meta: SaveMeta) -> bool:
        """Copy the state for a restart of this node's workers, if there is a memory tier for it; whether it was."""
        if self._service.identity is None or not (self._snapshots.kept or self._snapshots.shares):
            return False
        captured = capture(tracked)
        draft = self.draft(meta, captured, judge_health(meta.signs).status)
        return self._snapshots.keep(draft, self.taker.to_keep(captured), captured)

    def _land(self) -> SaveResult | None:
        result = None
        while self._flight is not None:
            result = self.advance(all_ready=True)
        return result

    def _clear(self) -> tuple[SaveResult | None, str]:
        """How the save under way ended, waited for within limits; else why one that is due is left out."""
        flight, result = self._flight, None
        if flight is not None and self._settings.save_overlap == SaveOverlap.SKIP:
            return None, f"iteration {flight.meta.iteration} is still being written"
        while self._flight is not None:
            if why := self._stalls(self._flight):
                return None, why
            result = self.advance(all_ready=True)
        return result, ""

    def _stalls(self, flight: Flight) -> str:
        begun_s = self._clock.monotonic_s()
        stalled = stalls(flight, usual_s=self._usual_s, group=self._group, clock=self._clock)
        if stalled and not flight.stalled:
            self._tell(events.Notice(text=stalled))
        waited_s = self._clock.monotonic_s() - begun_s
        self._flight = replace(
            flight, stall_s=flight.stall_s + waited_s, waited_s=flight.waited_s + waited_s, stalled=stalled
        )
        return stalled

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
            self._usual_s = max(seconds, 0.5 * self._usual_s)
            self.schedule.saved(meta.iteration)
            self._after_commit(meta, outcome, result)
        else:
            self.schedule.failed(meta.iteration)
            self._tell(events.CheckpointFailed(iteration=meta.iteration, reason=outcome.reason))
        return result

    def _begin(self, tracked: Mapping[str, Any], meta: SaveMeta) -> Flight:
        begun_s = self._clock.monotonic_s()
        captured, copied, fault = Captured(model={}, opt={}, values={}), None, None
        health = judge_health(meta.signs)
        own = self.taker.own_to_save(dealt_out=dealt_out(tracked))
        try:
            captured = capture(tracked, weights_only=self._settings.no_save_optim)
            draft = self.draft(meta, captured, health.status)
            copied = self._snapshots.copy(draft, self.taker.to_save(captured, own), captured)
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 - because peers wait for the vote; state_dict is the user's
            draft, fault = self.draft(meta, captured, health.status), error

        self._snapshots.share(draft, None if copied is None else copied.taken)  # outside: all ranks do

        def images() -> Sequence[Image]:
            if fault is not None or copied is None:
                raise fault or AssertionError
            return copied.settled()

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
                places=self._service.places,
                committer=self._service.committer,
                nonce=self._nonce,
                clock=self._clock,
                start=self._start,
            )
        stall_s = self._clock.monotonic_s() - begun_s
        return Flight(saving=saving, meta=meta, copied=copied, begun_s=begun_s, stall_s=stall_s)

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
            self._caretaker.begin(meta.iteration, outcome.manifest_digest, generation=meta.generation)

    def _tell(self, event: events.Event) -> None:
        """What all ranks know is told once."""
        if self._group.rank == 0:
            self._emit(event)
