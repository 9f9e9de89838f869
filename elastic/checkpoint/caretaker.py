"""The caretaker of a root: sets aside what led nowhere, and makes room after a commit. One for each directory."""

from __future__ import annotations

import logging
from collections.abc import Callable

from elastic import events
from elastic.checkpoint.background import Pending, Start
from elastic.checkpoint.keeping import Chosen, choose, make_room, set_aside
from elastic.checkpoint.layout import parse_iteration_dir
from elastic.checkpoint.restoring import newer_than
from elastic.checkpoint.seams import Committer, Settings
from elastic.checkpoint.storage import Storage
from elastic.checkpoint.survey import survey
from elastic.errors import StoreError

_log = logging.getLogger(__name__)


class Caretaker:
    """What fails is told, and nothing is lost by it: the next commit brings another try."""

    def __init__(
        self, settings: Settings, *, lineage: str, storage: Storage, committer: Committer, nonce: Callable[[], str],
        emit: events.Emit, start: Start,
    ) -> None:  # fmt: skip
        """`start`: how the long part, reading back what was committed, is done."""
        self._settings = settings
        self._lineage = lineage
        self._storage = storage
        self._committer = committer
        self._nonce = nonce
        self._emit = emit
        self._start = start
        self._chosen: Pending[Chosen] | None = None

    def begin(self, committed: int, manifest_digest: str) -> None:
        """An iteration was committed: find out what may go now."""
        self._chosen = self._start(lambda: self._choose(committed, manifest_digest))

    def make_room(self, *, wait: bool) -> None:
        """Delete what may go, once that is known. `wait` until it is."""
        if self._chosen is None or not (wait or self._chosen.done()):
            return
        chosen, self._chosen = self._chosen.result(), None
        try:
            kept = make_room(
                self._settings.save_path,
                chosen,
                storage=self._storage,
                record=self._committer.record,
                nonce=self._nonce,
            )
            if kept.fault:
                self._emit(events.Notice(text=kept.reason))
            _log.debug("deleted %s: %s", kept.deleted, kept.reason)
        except (OSError, StoreError) as error:
            self._emit(events.Notice(text=f"old iterations could not be deleted: {error}"))

    def set_aside_newer(self, iteration: int) -> None:
        """What is newer than the restored state led nowhere. It must not be found by a later fallback."""
        root = self._settings.save_path
        try:
            if all((parse_iteration_dir(name) or 0) <= iteration for name in self._storage.names(root)):
                return
            found = newer_than(survey(root, storage=self._storage), iteration=iteration, lineage=self._lineage)
            for name in set_aside(root, found, storage=self._storage, nonce=self._nonce):
                self._emit(events.Notice(text=f"set aside as {name}: newer than iteration {iteration}, not committed"))
        except OSError as error:
            self._emit(events.Notice(text=f"iterations newer than {iteration} could not be set aside: {error}"))

    def _choose(self, committed: int, manifest_digest: str) -> Chosen:
        try:
            return choose(
                self._settings.save_path,
                committed=committed,
                manifest_digest=manifest_digest,
                lineage=self._lineage,
                save_max=self._settings.save_max,
                keep_every_steps=self._settings.keep_every_steps,
                storage=self._storage,
            )
        except OSError as error:
            reason = f"old iterations could not be deleted: {error}"
            return Chosen(manifest_digest=manifest_digest, delete=(), trash=(), reason=reason, fault=True)
