"""The commit: how a state becomes the one that a restart restores. The order of the numbered points is the promise.

A process may die, or be paused for an hour, between any two of them: before point 7 the last committed iteration is
what it was, after it the new one counts. A check before a rename can be outrun by a paused process; the committer's
compare-and-set cannot. Nothing is ever overwritten: what stands in the way is set aside. Each pair of points has a
failpoint between them, by the number of the one that is done.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from elastic.checkpoint.background import Pending, Start, at_once
from elastic.checkpoint.ground import Course, Ground, OneDirectory
from elastic.checkpoint.image import Image
from elastic.checkpoint.layout import (
    COMMON,
    MANIFEST,
    METADATA,
    CommitRecord,
    CommonInfo,
    aside_name,
    iteration_dir,
    parse_temp_name,
    temp_name,
)
from elastic.checkpoint.manifest import FileFacts, Manifest
from elastic.checkpoint.outcome import Outcome, attempt, failed
from elastic.checkpoint.seams import Committer, CommitVerdict, Group
from elastic.checkpoint.storage import Storage
from elastic.checkpoint.survey import VISIBLE_POLL_S, VISIBLE_WITHIN_S, judge
from elastic.checkpoint.tracker import follow
from elastic.checkpoint.writing import write_image
from elastic.clock import SYSTEM_CLOCK, Clock
from elastic.errors import Fenced
from elastic.failpoint import failpoint
from elastic.limited import limited

logger = logging.getLogger(__name__)

_REMOVED_WITHIN_S = 1.0


class Saving:
    """A save under way, from point 1 to point 8. Every rank makes one and advances it at the same step boundaries.

    Between two boundaries `start` does what may take long, on a disk or in asking the committer: at once, or beside
    the training (see background.py). What needs the other ranks is done in `advance` alone, so in the order that all
    ranks do it in. Where the files go, and who acts and is told at each point, is the `ground`'s (see ground.py).
    """

    def __init__(
        self, draft: Manifest, common: CommonInfo, images: Callable[[], Sequence[Image]], *, root: str,
        storage: Storage, group: Group, committer: Committer, nonce: Callable[[], str], clock: Clock = SYSTEM_CLOCK,
        start: Start = at_once, ground: Ground | None = None,
    ) -> None:  # fmt: skip
        """`draft` is the manifest without its files; `images` are this rank's shards, asked for where they are written.

        `ground`: without one, a directory that all ranks share.

        Raises:
            PeerLost: from the group. Any other failure becomes the outcome.
        """
        self._draft, self._root, self._storage = draft, root, storage
        self._committer, self._nonce, self._clock, self._start = committer, nonce, clock, start
        self._ground: Ground = ground or OneDirectory(draft, common, group=group)
        self._collected = self._asking = False
        # All ranks know its name, and make it where they write: only a thread of its own may meet a disk that stalls.
        word = group.broadcast(nonce() if group.rank == 0 else None)
        name = temp_name(iteration=draft.iteration, generation=draft.generation, nonce=word)
        self._temp = os.path.join(root, name)
        self._course = self._go(images)
        self._working = self._begin(next(self._course))

    @property
    def written(self) -> bool:
        """Whether nobody reads this rank's images any more."""
        return self._collected or self._working.done()

    @property
    def ready(self) -> bool:
        """Whether this rank has done its part. Once all ranks have, each is to call `advance`."""
        return self._working.done()

    @property
    def asking(self) -> bool:
        """Whether it is the committer whose answer is waited for here."""
        return self._asking

    def advance(self) -> Outcome | None:
        """Go on by what this rank's part has come to, waiting for it if need be; the outcome at the end, None before.

        Raises:
            PeerLost: from the group.
        """
        try:
            self._working = self._begin(self._course.send(self._working.result()))
        except StopIteration as end:
            outcome: Outcome = end.value
            if not outcome.committed:
                self.remove()
            return outcome
        return None

    def give_up(self) -> Pending[dict[str, Any]]:
        """Let go of the group. What this rank has begun, and is returned, goes on: where it leads up to the commit."""
        self._course.close()
        return self._working

    def _begin(self, work: Callable[[], Any] | None) -> Pending[dict[str, Any]]:
        return at_once(lambda: attempt(lambda: None)) if work is None else self._start(lambda: attempt(work))

    def _go(self, images: Callable[[], Sequence[Image]]) -> Course:
        wrote = yield lambda: self._write(images)
        over = self._ground.collect(wrote, temp=self._temp)
        self._collected = True
        failpoint("checkpoint.2")
        if over is not None:
            return failed(over)
        # 3.-8. Who leads a directory does the rest there.
        return (yield from self._ground.conclude(self))

    def _write(self, images: Callable[[], Sequence[Image]]) -> list[dict[str, Any]]:
        mine = images()  # what was wrong with the copy counts before anything that is wrong here
        # 1. A directory of this attempt alone, named by generation and nonce; leftovers of earlier ones go.
        if self._ground.lead:
            remove_leftovers(self._draft, self._root, self._storage, beside=self._temp)
        self._storage.make_dir(self._temp)
        failpoint("checkpoint.1")
        # 2. Every rank writes its shards, each forced to disk, and tells their sizes and checksums.
        return [write_image(self._temp, each, self._storage) for each in mine]

    def publish(self, texts: Mapping[str, bytes]) -> None:
        """Points 3 to 6, with the three small files."""
        storage, temp = self._storage, self._temp
        # 3. The seed's two files.
        for name in (COMMON, METADATA):
            storage.write(os.path.join(temp, name), texts[name])
        _await_visible(temp, Manifest.from_bytes(texts[MANIFEST]).files, storage, self._clock)
        failpoint("checkpoint.3")
        # 4. The manifest names every other file; with it the directory is complete, and its names are durable.
        storage.write(os.path.join(temp, MANIFEST), texts[MANIFEST])
        storage.sync_dir(temp)
        failpoint("checkpoint.4")
        # 5. Its real name, by a rename that refuses to replace.
        free_place(self._draft, self._root, storage, self._nonce())
        storage.publish(temp, os.path.join(self._root, iteration_dir(self._draft.iteration)))
        failpoint("checkpoint.5")
        # 6. The new name is durable.
        storage.sync_dir(self._root)
        failpoint("checkpoint.6")

    def commit(self, record: CommitRecord) -> CommitVerdict:
        """Point 7."""
        self._asking = True
        try:
            # 7. THE COMMIT: from here on it is what a restart restores.
            return self._committer.commit(record)
        finally:
            self._asking = False

    def fence(self) -> str | None:
        """Why the tracker may not be moved, or None."""
        return self._committer.fence()

    def follow(self, manifest: Manifest) -> str | None:
        """Point 8; why it could not be."""
        # 8. The tracker follows, for readers that know no record. Behind, it misleads nobody: the next save repairs
        # it. A process that was paused since point 7 leaves it alone: others may have gone on.
        found = attempt(lambda: follow(self._root, manifest, storage=self._storage))
        return None if found["fault"] is None else str(found["fault"])

    def remove(self) -> None:
        """By every rank: one that has lost its mount has made a directory of its own. What a disk that stalls keeps
        is a leftover for a later save."""
        attempt(lambda: limited(self._remove_now, limit_s=_REMOVED_WITHIN_S, what=f"removing {self._temp}"))

    def _remove_now(self) -> None:
        self._storage.remove_tree(self._temp)


def finish(saving: Saving) -> Outcome:
    """Wait for a save that may be under way to end. Called by every rank."""
    while (outcome := saving.advance()) is None:
        pass
    return outcome


def remove_leftovers(draft: Manifest, root: str, storage: Storage, *, beside: str) -> None:
    """Remove what attempts of this generation and earlier ones left, but for the one at work now, `beside`.

    A leftover that will not go costs space only, and never this save: whoever left it may be writing into it still.
    The next save tries again.
    """
    for name in storage.names(root):
        generation, path = parse_temp_name(name), os.path.join(root, name)
        if generation is not None and generation <= draft.generation and path != beside:
            left = attempt(functools.partial(storage.remove_tree, path))
            if left["fault"] is not None:
                logger.warning("%s, left by generation %d, could not be removed: %s", name, generation, left["fault"])


def free_place(draft: Manifest, root: str, storage: Storage, nonce: str) -> None:
    """Free the place of this iteration; what is there was never committed, or turned out to be damaged."""
    place = iteration_dir(draft.iteration)
    if place not in storage.names(root):
        return
    there = judge(root, place, iteration=draft.iteration, storage=storage)
    if there.lineage == draft.lineage and there.generation > draft.generation:
        raise Fenced(f"{place} was written by generation {there.generation}, this is {draft.generation}")
    storage.publish(os.path.join(root, place), os.path.join(root, aside_name(place, nonce=nonce)))


def _await_visible(temp: str, files: Mapping[str, FileFacts], storage: Storage, clock: Clock) -> None:
    """What other ranks wrote may reach this node late, where the file system keeps what it knew of a directory."""
    limit_s = clock.monotonic_s() + VISIBLE_WITHIN_S
    for name, facts in files.items():
        while (size_bytes := storage.size_bytes(os.path.join(temp, name))) != facts.size_bytes:
            if clock.monotonic_s() >= limit_s:
                raise OSError(
                    f"{name} was written with {facts.size_bytes} bytes, but rank 0 sees {size_bytes}: "
                    "checkpoint.save_path must be one directory that all nodes share"
                )
            clock.sleep(VISIBLE_POLL_S)
            storage.names(temp)  # listing a directory makes a network file system ask for it anew
