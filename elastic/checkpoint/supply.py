"""Supply: that every rank can read what is to be restored, wherever it lies: late, private, or read in parts."""

from __future__ import annotations

import os
from collections.abc import Callable

from elastic import events
from elastic.checkpoint.arrivals import Arrivals
from elastic.checkpoint.balanced import read_together
from elastic.checkpoint.exchange import bring
from elastic.checkpoint.holdings import survey_places
from elastic.checkpoint.places import Places
from elastic.checkpoint.reading import read_manifest
from elastic.checkpoint.restoring import Attempt, Plan
from elastic.checkpoint.seams import Group, Settings
from elastic.checkpoint.storage import Storage
from elastic.checkpoint.survey import VISIBLE_POLL_S, VISIBLE_WITHIN_S, Survey, judge
from elastic.clock import Clock
from elastic.errors import CheckpointDamaged


class Supply:
    """For one restore. Every rank makes one and calls its methods alike."""

    def __init__(
        self, settings: Settings, *, group: Group, storage: Storage, places: Places | None, generation: int | None,
        nonce: Callable[[], str], clock: Clock, emit: events.Emit, arrivals: Arrivals,
    ) -> None:  # fmt: skip
        """`places`: the directories that save_path is, where nodes do not share one."""
        self._settings, self._group, self._storage, self._places = settings, group, storage, places
        self._generation, self._nonce, self._clock, self._emit = generation, nonce, clock, emit
        self._arrivals = arrivals
        self._brought: str | None = None

    @property
    def apart(self) -> bool:
        """Whether nodes have directories of their own."""
        return self._places is not None

    def survey(self) -> Survey | OSError | None:
        """What all private directories hold together, or why that cannot be said; None where there is one for all.

        Raises:
            PeerLost: from the group.
        """
        if self._places is None:
            return None
        try:
            root = self._settings.save_path
            return survey_places(root, places=self._places, group=self._group, storage=self._storage)
        except OSError as error:
            return error

    def bring(self, attempt: Attempt, plan: Plan) -> str | None:
        """With private directories: see to it that each has what is to be tried; why that cannot be, or None."""
        digest = attempt.manifest_digest
        if self._places is None or not plan.own or digest is None or digest == self._brought:
            return None
        fault = bring(
            self._settings.save_path,
            manifest_digest=digest,
            iteration=attempt.iteration,
            generation=self._generation or 0,
            places=self._places,
            group=self._group,
            storage=self._storage,
            nonce=self._nonce,
            tell=lambda text: self._emit(events.Notice(text=text)),
            arrivals=self._arrivals,
        )
        self._brought = digest if fault is None else None
        return fault

    def source(self, attempt: Attempt, plan: Plan, *, balanced: bool) -> Storage:
        """What to read from, once it is visible here: with load_balanced, what all ranks have read together."""
        if self._brought is None or self._brought != attempt.manifest_digest:
            self._await_visible(attempt)
        if not balanced or not self._settings.load_balanced or self._group.size == 1 or attempt.manifest_digest is None:
            return self._storage
        try:
            digest = attempt.manifest_digest
            manifest = read_manifest(attempt.directory, storage=self._storage, manifest_digest=digest)
        except CheckpointDamaged:
            manifest = None  # told by whoever reads it again
        known = self._group.gather(manifest is not None)
        if not self._group.broadcast(None if known is None else all(known)) or manifest is None:
            return self._storage
        return read_together(
            attempt.directory,
            manifest,
            storage=self._storage,
            group=self._group,
            weights_only=plan.weights_only,
            arrivals=self._arrivals,
        )

    def _await_visible(self, attempt: Attempt) -> None:
        """What rank 0 saw may reach this node later. What is still not there then is told as damage by who reads it."""
        root, place = os.path.split(attempt.directory)
        limit_s = self._clock.monotonic_s() + VISIBLE_WITHIN_S
        while self._group.rank != 0:
            found = judge(root, place, iteration=None, storage=self._storage)
            seen = found.problem is None and found.manifest_digest == attempt.manifest_digest
            if seen or self._clock.monotonic_s() >= limit_s:
                return
            self._clock.sleep(VISIBLE_POLL_S)
