"""The commit: how a state becomes the one that a restart restores. The order of the numbered points is the promise.

A process may die, or be paused for an hour, between any two of them: before point 7 the last committed iteration is
what it was, after it the new one counts. A check before a rename can be outrun by a paused process; the committer's
compare-and-set cannot. Nothing is ever overwritten: what stands in the way is set aside. Each pair of points has a
failpoint between them, by the number of the one that is done.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from elastic.checkpoint.background import Pending, Start, at_once, in_thread
from elastic.checkpoint.checksums import CHUNK_BYTES, facts_of
from elastic.checkpoint.image import Image
from elastic.checkpoint.layout import (
    COMMON,
    MANIFEST,
    METADATA,
    CommonInfo,
    aside_name,
    is_spare,
    iteration_dir,
    parse_temp_name,
    temp_name,
)
from elastic.checkpoint.manifest import FileFacts, Manifest, record_of
from elastic.checkpoint.metadata import StoredTensor, TensorFacts, build_metadata
from elastic.checkpoint.seams import Committer, Group
from elastic.checkpoint.storage import LARGE_BYTES, Recycler, Storage
from elastic.checkpoint.survey import VISIBLE_POLL_S, VISIBLE_WITHIN_S, judge
from elastic.checkpoint.tracker import follow
from elastic.clock import SYSTEM_CLOCK, Clock
from elastic.errors import Fenced
from elastic.failpoint import failpoint


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a save ended, the same on every rank."""

    committed: bool
    stale: bool
    reason: str
    total_bytes: int
    manifest_digest: str = ""
    fenced: str = ""
    """Why the tracker was left alone, where the commit was granted and the lease lapsed right after."""
    left_out: str = ""
    """Which private directories do not hold it though it was committed, and why."""


class Save(Protocol):
    """A save under way, for who waits for it."""

    @property
    def written(self) -> bool:
        """Whether nobody reads this rank's images any more."""
        ...

    @property
    def ready(self) -> bool:
        """Whether this rank has done its part. Once all ranks have, each is to call `advance`."""
        ...

    def advance(self) -> Outcome | None:
        """Go on, waiting for this rank's part if need be; the outcome at the end, None before. Raises PeerLost."""
        ...


class Saving:
    """A save under way, from point 1 to point 8. Every rank makes one and advances it at the same step boundaries.

    Between two boundaries `start` does the writing: at once, or beside the training (see background.py). What needs
    the other ranks or the committer is done in `advance` alone, so in the order that all ranks do it in.
    """

    def __init__(
        self, draft: Manifest, common: CommonInfo, images: Callable[[], Sequence[Image]], *, root: str,
        storage: Storage, group: Group, committer: Committer, nonce: Callable[[], str], clock: Clock = SYSTEM_CLOCK,
        start: Start = at_once,
    ) -> None:  # fmt: skip
        """`draft` is the manifest without its files; `images` are this rank's shards, asked for where they are written.

        Raises:
            PeerLost: from the group. Any other failure becomes the outcome.
        """
        self._draft, self._common, self._root = draft, common, root
        self._storage, self._group, self._committer = storage, group, committer
        self._nonce, self._clock, self._start = nonce, clock, start
        self._wrote: Pending[dict[str, Any]] | None = None
        self._prepared: Pending[dict[str, Any]] | None = None
        lead = group.rank == 0
        # 1. A directory of this attempt alone, named by generation and nonce; leftovers of earlier ones go.
        begun = group.broadcast(attempt(lambda: begin(draft, root, storage, nonce())) if lead else None)
        self._fault: str | None = begun["fault"]
        if self._fault is None:
            failpoint("checkpoint.1")
            self._temp = os.path.join(root, begun["value"])
            # 2. Every rank writes its shards, each forced to disk, and tells their sizes and checksums.
            self._wrote = start(lambda: attempt(lambda: [write_image(self._temp, each, storage) for each in images()]))

    @property
    def written(self) -> bool:
        """Whether nobody reads this rank's images any more."""
        return self._wrote is None or self._wrote.done()

    @property
    def ready(self) -> bool:
        """Whether this rank has done its part. Once all ranks have, each is to call `advance`."""
        return self.written and (self._prepared is None or self._prepared.done())

    def advance(self) -> Outcome | None:
        """Go on by what this rank's part has come to, waiting for it if need be; the outcome at the end, None before.

        Raises:
            PeerLost: from the group.
        """
        if self._fault is not None or self._wrote is None:
            return failed(self._fault or "it never began")
        if self._prepared is None:
            wrote = self._group.gather(self._wrote.result())
            failpoint("checkpoint.2")
            # 3.-6. Rank 0 does the rest and tells everyone how it ended; the others are ready at once.
            self._prepared = (self._start if wrote is not None else at_once)(
                lambda: attempt(lambda: self._prepare(_agreed(wrote or [])))
            )
            return None
        prepared, outcome = self._prepared.result(), None
        if self._group.rank == 0:
            finished = prepared if prepared["fault"] is not None else attempt(lambda: self._count(prepared["value"]))
            outcome = finished["value"] or dataclasses.asdict(failed(finished["fault"], stale=finished["fenced"]))
            if not outcome["committed"]:
                attempt(lambda: self._storage.remove_tree(self._temp))
        return Outcome(**self._group.broadcast(outcome))

    def _prepare(self, shards: list[dict[str, Any]]) -> Manifest | None:
        if self._group.rank != 0:
            return None
        draft, storage, temp = self._draft, self._storage, self._temp
        # 3. The seed's two files.
        files = {shard["name"]: FileFacts(**shard["facts"]) for shard in shards}
        for name, data in ((COMMON, self._common.to_bytes()), (METADATA, build_metadata(stored(shards)))):
            storage.write(os.path.join(temp, name), data)
            files[name] = facts_of(data)
        _await_visible(temp, files, storage, self._clock)
        failpoint("checkpoint.3")
        # 4. The manifest names every other file; with it the directory is complete, and its names are durable.
        manifest = dataclasses.replace(draft, files=files, chunk_bytes=CHUNK_BYTES)
        storage.write(os.path.join(temp, MANIFEST), manifest.to_bytes())
        storage.sync_dir(temp)
        failpoint("checkpoint.4")
        # 5. Its real name, by a rename that refuses to replace.
        final = os.path.join(self._root, iteration_dir(draft.iteration))
        free_place(draft, self._root, storage, self._nonce())
        storage.publish(temp, final)
        failpoint("checkpoint.5")
        # 6. The new name is durable.
        storage.sync_dir(self._root)
        failpoint("checkpoint.6")
        return manifest

    def _count(self, manifest: Manifest) -> dict[str, Any]:
        data = manifest.to_bytes()
        # 7. THE COMMIT: from here on it is what a restart restores.
        record = record_of(manifest, data)
        verdict = self._committer.commit(record)
        if not verdict.granted:
            return dataclasses.asdict(failed(f"not committed: {verdict.reason}", stale=verdict.stale))
        failpoint("checkpoint.7")
        # 8. The tracker follows, for readers that know no record. Behind, it misleads nobody: the next save repairs
        # it. A process that was paused since point 7 leaves it alone: others may have gone on.
        fenced = self._committer.fence()
        late = fenced or attempt(lambda: follow(self._root, manifest, storage=self._storage))["fault"]
        failpoint("checkpoint.8")
        reason = verdict.reason if late is None else f"{verdict.reason}; the tracker could not follow: {late}"
        return {
            "committed": True,
            "stale": False,
            "reason": reason,
            "total_bytes": len(data) + sum(facts.size_bytes for facts in manifest.files.values()),
            "manifest_digest": record.manifest_digest,
            "fenced": fenced or "",
        }


def finish(saving: Save) -> Outcome:
    """Wait for a save that may be under way to end. Called by every rank."""
    while (outcome := saving.advance()) is None:
        pass
    return outcome


def begin(draft: Manifest, root: str, storage: Storage, nonce: str) -> str:
    """Make the directory of an attempt, named by generation and nonce, and remove leftovers; gives its name."""
    for name in storage.names(root):
        generation = parse_temp_name(name)
        if generation is not None and generation <= draft.generation:
            storage.remove_tree(os.path.join(root, name))
    name = temp_name(iteration=draft.iteration, generation=draft.generation, nonce=nonce)
    storage.make_dir(os.path.join(root, name))
    return name


def write_image(temp: str, image: Image, storage: Storage) -> dict[str, Any]:
    """Write a file, forced to disk; gives its name, length, checksums and tensors in JSON types."""
    path = os.path.join(temp, image.name)
    if len(image.data) >= LARGE_BYTES:
        facts = in_thread(lambda: facts_of(image.data))  # while the disk is at work
        if not _rewrite(path, image, storage):
            storage.write(path, image.data)
    else:
        facts = at_once(lambda: facts_of(image.data))
        storage.write(path, image.data)
    tensors = [each.to_plain() for each in image.tensors]
    return {"name": image.name, "facts": dataclasses.asdict(facts.result()), "tensors": tensors}


def _rewrite(path: str, image: Image, storage: Storage) -> bool:
    """Write it over the file of its name in an iteration that was given up, if there is one."""
    root = os.path.dirname(os.path.dirname(path))
    if not isinstance(storage, Recycler) or not isinstance(image.data, memoryview):
        return False
    spares = [os.path.join(root, name, image.name) for name in storage.names(root) if is_spare(name)]
    return any(storage.rewrite(spare, path, image.data) for spare in spares)


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


def stored(shards: list[dict[str, Any]]) -> list[StoredTensor]:
    """What metadata.json says of the files that `write_image` told of, each with the `rank` that wrote it."""
    return [
        StoredTensor(facts=TensorFacts.from_plain(plain), file_name=shard["name"], rank=shard["rank"])
        for shard in shards
        for plain in shard["tensors"]
    ]


def _agreed(wrote: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All shards of all ranks, if all were written."""
    faults = [f"rank {rank}: {each['fault']}" for rank, each in enumerate(wrote) if each["fault"] is not None]
    if faults:
        raise OSError("; ".join(faults))
    return [shard | {"rank": rank} for rank, each in enumerate(wrote) for shard in each["value"]]


def attempt(work: Callable[[], Any]) -> dict[str, Any]:
    """Do something; a failure becomes a value that can be told to the other ranks."""
    try:
        return {"value": work(), "fault": None, "fenced": False}
    except Exception as error:  # noqa: BLE001 - because peers wait: a failure of any kind must reach the vote
        return {"value": None, "fault": f"{type(error).__name__}: {error}", "fenced": isinstance(error, Fenced)}


def failed(reason: str, *, stale: bool = False) -> Outcome:
    """The outcome of a save that was not committed."""
    return Outcome(committed=False, stale=stale, reason=reason, total_bytes=0)
