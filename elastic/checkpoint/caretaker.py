"""The caretaker of a root: sets aside what led nowhere, and makes room after a commit. One for each directory.

Making room is done beside the training, and never waited for but at the end: it reads back all that was committed, from
a disk that may be slow or stall.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from elastic import events
from elastic.checkpoint.background import Pending, Start
from elastic.checkpoint.keeping import choose, make_room, set_aside
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
        """`start`: how room is made."""
        self._settings = settings
        self._lineage = lineage
        self._storage = storage
        self._committer = committer
        self._nonce = nonce
        self._emit = emit
        self._start = start
        self._working: Pending[str] | None = None
        self._next: tuple[int, int, str] | None = None

    def begin(self, committed: int, manifest_digest: str, *, generation: int) -> None:
        """An iteration was committed: delete what may go now, or as soon as that is done for an earlier one."""
        self._next = (committed, generation, manifest_digest)
        self.look(wait=False)

    def look(self, *, wait: bool) -> None:
        """Tell what went wrong, once that is known, and go on with what was committed meanwhile. `wait` for all."""
        while True:
            if self._working is None and self._next is not None:
                work, self._next = partial(self._make_room, *self._next), None
                self._working = self._start(work)
            if self._working is None or not (wait or self._working.done()):
                return
            fault, self._working = self._working.result(), None
            if fault:
                self._emit(events.Notice(text=fault))

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

    def _make_room(self, committed: int, generation: int, manifest_digest: str) -> str:
        """What went wrong, or ""."""
        root, settings, storage = self._settings.save_path, self._settings, self._storage
        try:
            chosen = choose(
                root,
                committed=committed,
                manifest_digest=manifest_digest,
                lineage=self._lineage,
                save_max=settings.save_max,
                keep_every_steps=settings.keep_every_steps,
                storage=storage,
            )
            record, nonce = self._committer.record, self._nonce
            kept = make_room(root, chosen, storage=storage, record=record, nonce=nonce, generation=generation)
        except (OSError, StoreError) as error:
            return f"old iterations could not be deleted: {error}"
        _log.debug("deleted %s: %s", kept.deleted, kept.reason)
        return kept.reason if kept.fault else ""
