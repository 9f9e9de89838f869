"""Restoring by all ranks together: rank 0 decides, everyone verifies, nothing is applied before all agree."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from elastic import events
from elastic.checkpoint.adopting import publish_prepared
from elastic.checkpoint.arena import Held
from elastic.checkpoint.arrivals import MEMORY, Arrivals, nowhere
from elastic.checkpoint.layout import TRACKER, CommitRecord, build_tracker
from elastic.checkpoint.locating import is_url
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.memory import MemoryTier
from elastic.checkpoint.opening import Reading, open_candidate
from elastic.checkpoint.places import Places
from elastic.checkpoint.recalling import (
    Offers,
    Pick,
    decide,
    fetch,
    from_plain,
    held_parts,
    kept_of,
    offer_of,
    offers_of,
    viewed_in,
)
from elastic.checkpoint.regathering import Regathering
from elastic.checkpoint.restored import Restored, restored_from
from elastic.checkpoint.restoring import Attempt, Plan, going_back, nothing_left, plan_restore
from elastic.checkpoint.rng import apply_rng
from elastic.checkpoint.root import RootIdentity
from elastic.checkpoint.seams import Committer, Group, Settings
from elastic.checkpoint.state import Captured, overwritable, prepare, wanted_cuts
from elastic.checkpoint.storage import Storage
from elastic.checkpoint.supply import Supply
from elastic.checkpoint.survey import Survey
from elastic.checkpoint.voting import heard, settle
from elastic.clock import SYSTEM_CLOCK, Clock
from elastic.errors import (
    CheckpointError,
    ElasticError,
    Fenced,
    NothingToRestore,
    RunMismatch,
    StateElsewhere,
    StoreRefused,
    StoreUnavailable,
    UsageError,
)

_RAISED = (NothingToRestore, StateElsewhere, RunMismatch, UsageError, StoreUnavailable, StoreRefused, Fenced)
_TOLD: dict[str, type[ElasticError]] = {each.__name__: each for each in _RAISED}
"""Errors that rank 0 may meet while deciding, and that every rank then raises as what they are."""


class Reader:
    """One restore. Every rank makes one and calls `restore`."""

    def __init__(
        self, settings: Settings, identity: RootIdentity | None, *, group: Group, storage: Storage, emit: events.Emit,
        committer: Committer, nonce: Callable[[], str], clock: Clock = SYSTEM_CLOCK, generation: int | None = None,
        tier: MemoryTier | None = None, places: Places | None = None, others_may_hold: bool = False,
        arrivals: Arrivals | None = None,
    ) -> None:  # fmt: skip
        """`committer`: asked on rank 0 only. `generation`: that of this start; None: it adopts nothing.

        `places`: the directories that save_path is, where nodes do not share one. `others_may_hold`: see `Service`.
        """
        self._others_may_hold = others_may_hold
        self._tier = tier
        self._arrivals = arrivals or Arrivals(clock)
        self._settings = settings
        self._committer = committer
        self._nonce = nonce
        self._clock = clock
        self._generation = generation if identity is not None and settings.enable_save else None
        self._record: CommitRecord | None = None
        self._identity = identity
        self._group = group
        self._storage = storage
        self._emit = emit
        self._supply = Supply(
            settings,
            group=group,
            storage=storage,
            places=None if identity is None else places,
            generation=generation,
            nonce=nonce,
            clock=clock,
            emit=emit,
            arrivals=self._arrivals,
        )
        self.ancestors: tuple[str, ...] = ()
        """After a restore of this run's own state: digests of what was committed up to it, itself included."""
        self.durable = 0
        """The last committed iteration after such a restore; what came from memory may be newer."""

    def restore(self, tracked: Mapping[str, Any], *, recall: bool = True) -> Restored:
        """Restore the first iteration that is whole on every rank; with `recall` also one in memory.

        Raises:
            NothingToRestore, RunMismatch, StateElsewhere: see `plan_restore`; also when every candidate turned out
            damaged. NewestElsewhere: others may hold what was committed last, and nobody here does.
            CheckpointError: it is whole but does not fit the tracked objects.
            Fenced: a newer generation exists.
        """
        plan = self._plan()
        if self._supply.apart and plan.attempts:
            # Whatever is gone on from: a node that came empty gets what was committed, and ancestors are known.
            self._supply.bring(plan.attempts[0], plan)
        if recall and (recalled := self._recall(plan, tracked)) is not None:
            return recalled
        faults = list[str]()
        for attempt in plan.attempts:
            note = going_back(plan, attempt, faults) if attempt.back else ""
            fault = self._supply.bring(attempt, plan) or self._from_disk(attempt, plan, tracked)
            if isinstance(fault, Restored):
                self._tell_passed(plan, attempt.iteration)
                if note and self._group.rank == 0:
                    self._emit(events.Notice(text=note))
                return fault
            self._reject(attempt, fault)
            faults.append(f"iteration {attempt.iteration}: {fault}")
        if faults or plan.missing:
            self._tell_passed(plan, 0)
            raise nothing_left(plan, faults)
        return Restored(reason=plan.reason, lineage=self._lineage(""))

    def _from_disk(self, attempt: Attempt, plan: Plan, tracked: Mapping[str, Any]) -> Restored | str:
        parts = bool(wanted_cuts({}, tracked))  # where each rank needs only its parts there is nothing to balance
        source = self._supply.source(attempt, plan, balanced=not parts)
        begin = partial(
            open_candidate, attempt, plan, source, tracked, rank=self._group.rank, arrivals=self._arrivals
        )  # fmt: skip
        return self._try(attempt, plan, tracked, begin)

    def _plan(self) -> Plan:
        seen = self._supply.survey()
        told = self._group.broadcast(self._decide(seen) if self._group.rank == 0 else None)
        if "error" in told:
            raise _TOLD.get(told["error"], CheckpointError)(told["text"])
        return Plan.from_plain(told["plan"])

    def _decide(self, seen: Survey | OSError | None) -> dict[str, Any]:
        try:
            if isinstance(seen, OSError):
                raise seen
            self._record = self._committer.record()
            if not self._supply.apart:
                self._publish_prepared()
            plan = plan_restore(
                self._settings,
                identity=self._identity,
                record=self._record,
                storage=self._storage,
                generation=self._generation,
                seen=seen,
                others_may_hold=self._others_may_hold,
            )
        except ElasticError as error:
            return {"error": type(error).__name__, "text": str(error)}
        except OSError as error:
            # A store over a network may be there again when the worker is started the next time.
            kind = CheckpointError if is_url(self._settings.save_path or self._settings.load_path) else UsageError
            return {"error": kind.__name__, "text": f"cannot look for checkpoints: {error}"}
        return {"plan": plan.to_plain()}

    def _publish_prepared(self) -> None:
        if self._generation is None or self._identity is None:
            return
        try:
            place = publish_prepared(
                self._settings.save_path,
                lineage=self._identity.lineage,
                record=self._record,
                generation=self._generation,
                load_unhealthy=self._settings.load_unhealthy,
                storage=self._storage,
                nonce=self._nonce,
            )
            if place is not None:
                self._emit(events.Notice(text=f"{place} was complete, but not yet in its place: it is now"))
        except OSError as error:
            self._emit(events.Notice(text=f"what an earlier start left could not be adopted: {error}"))

    def _recall(self, plan: Plan, tracked: Mapping[str, Any]) -> Restored | None:
        """Restore from memory, if some rank has a copy there that is worth it; else None, and nothing was changed."""
        if not self._settings.memory_every_steps or not plan.own or self._generation is None:
            return None
        there = self._tier.held() if self._tier else []
        held = {offer_of(each): each for each in reversed(there) if each.whole}
        offers = self._group.gather(offers_of(there))
        told = self._group.broadcast(None if offers is None else self._choose(offers, plan))
        chosen = from_plain(told["pick"])
        if chosen.offer is None:
            if any(each["whole"] or each["parts"] for each in offers or []):
                self._emit(events.Notice(text=f"not from memory: {chosen.reason}"))
            return None
        mine, iteration = held.get(chosen.offer), chosen.offer.iteration
        attempt = Attempt(directory="memory", iteration=iteration, manifest_digest=None, reason=chosen.reason)
        begin = self._in_parts(chosen, there, tracked) if chosen.parts else self._in_whole(chosen, mine, tracked)
        result = self._try(attempt, plan, tracked, begin, tier=MEMORY)
        if isinstance(result, Restored):
            self.ancestors, self.durable = tuple(told["ancestors"]), told["durable"]
            return result
        self._reject(attempt, result)
        return None

    def _in_whole(self, chosen: Pick, mine: Held | None, tracked: Mapping[str, Any]) -> Callable[[], Reading]:
        if mine is not None and len(chosen.holders) == self._group.size:
            found = mine.manifest, dict(mine.images)
        else:
            found = fetch(chosen, mine, group=self._group, arrivals=self._arrivals)

        def keep(viewed: Captured) -> Captured:
            count = self._arrivals.begin(MEMORY)
            kept = kept_of(viewed, live=overwritable(tracked))
            count(0 if mine is None else mine.size_bytes)
            return kept

        def begin() -> Reading:
            viewed = viewed_in(*found)
            prepare(viewed, tracked)
            return Reading(read=partial(keep, viewed), manifest=found[0])

        return begin

    def _in_parts(self, chosen: Pick, there: Sequence[Held], tracked: Mapping[str, Any]) -> Callable[[], Reading]:
        parts = held_parts(there, chosen.offer)
        meeting = Regathering(chosen.parts, parts, tracked=tracked, group=self._group, arrivals=self._arrivals)
        meeting.meet()

        def begin() -> Reading:
            captured, manifest = meeting.read()
            prepare(captured, tracked)
            return Reading(read=lambda: captured, manifest=manifest)

        return begin

    def _choose(self, offers: list[Offers], plan: Plan) -> dict[str, Any]:
        lenient, line, storage = self._settings.load_unhealthy, self._lineage(""), self._storage
        return decide(offers, record=self._record, lineage=line, plan=plan, load_unhealthy=lenient, storage=storage)

    def _try(
        self, attempt: Attempt, plan: Plan, tracked: Mapping[str, Any], begin: Callable[[], Reading], *,
        tier: str = "disk",
    ) -> Restored | str:  # fmt: skip
        """Restore one candidate on all ranks, or say why it is damaged.

        Nothing is changed before all ranks know that it fits. Damage may be found after that: the tensors that were
        read into are worth nothing then, until another candidate was restored.
        """
        reading, vote = heard(begin)
        if (fault := settle(vote, of=attempt.directory, group=self._group)) is not None:
            return fault
        assert reading is not None
        manifest = reading.manifest

        def read() -> tuple[Captured, Callable[[], None], Restored]:
            captured = reading.read()
            apply = prepare(captured, tracked, weights_only=plan.weights_only)
            return captured, apply, replace(self._restored(attempt, plan, manifest), tier=tier)

        found, vote = heard(read)
        claim = partial(self._claim, attempt, plan, manifest)
        fault = settle(vote, of=attempt.directory, group=self._group, claim=claim)
        if fault is not None:
            return fault
        assert found is not None
        captured, apply, restored = found
        if restored.own and manifest is not None and attempt.manifest_digest is not None:
            self.ancestors = (*manifest.ancestors, attempt.manifest_digest)
            self.durable = attempt.iteration
        count = self._arrivals.begin(MEMORY) if tier == MEMORY else nowhere
        apply()
        count(0)
        if not plan.weights_only:
            apply_rng(captured.opt, rank=self._group.rank)
        return restored

    def _claim(self, attempt: Attempt, plan: Plan, manifest: Manifest | None) -> dict[str, str]:
        """On rank 0, when all ranks have verified it: commit what is adopted, and put our generation in the record.

        A store that lost its data has no record: it gets one again. To go back is committed, too: the next start does
        not look for what was given up, and copies in memory made since then count.

        From then on nothing that an older generation still saves can be adopted.
        """
        record = self._record
        if self._generation is None or not plan.own or manifest is None:
            return {}
        if attempt.manifest_digest is not None and (attempt.adopt or attempt.back or record is None):
            record = CommitRecord(
                iteration=manifest.iteration,
                lineage=manifest.lineage,
                manifest_digest=attempt.manifest_digest,
                generation=self._generation,
                consumed_samples=manifest.consumed_samples,
            )
        elif record is None or record.generation >= self._generation:
            return {}
        answer = self._committer.commit(replace(record, generation=self._generation))
        if answer.stale:
            return {"fenced": answer.reason}
        if not attempt.adopt and not (attempt.back and answer.granted):
            return {}
        if not answer.granted:
            return {"damaged": f"it is complete, but it could not be committed: {answer.reason}"}
        if attempt.adopt:
            self._emit(events.Notice(text=f"adopted iteration {attempt.iteration}: {attempt.reason}"))
        tracker = os.path.join(self._settings.save_path, TRACKER)
        with contextlib.suppress(OSError):  # behind, it misleads nobody
            self._storage.replace(tracker, build_tracker(attempt.iteration))
        return {}

    def _restored(self, attempt: Attempt, plan: Plan, manifest: Manifest | None) -> Restored:
        reason = f"{attempt.directory}: {attempt.reason}"
        if manifest is None or plan.weights_only:
            reason += " (weights only: no_load_optim)"
            return Restored(lineage=self._lineage(""), tier="disk", reason=reason)
        lineage = self._lineage(manifest.lineage)
        return restored_from(manifest, tier="disk", reason=reason, own=plan.own, lineage=lineage)

    def _lineage(self, default: str) -> str:
        return self._identity.lineage if self._identity is not None else default

    def _tell_passed(self, plan: Plan, iteration: int) -> None:
        """What was never tried, but would have come before this iteration had it been whole and committed."""
        for each in plan.passed:
            if each.iteration >= iteration:
                self._reject(each, each.reason)

    def _reject(self, attempt: Attempt, fault: str) -> None:
        if self._group.rank == 0:
            self._emit(events.CheckpointRejected(iteration=attempt.iteration, reason=f"{attempt.directory}: {fault}"))
