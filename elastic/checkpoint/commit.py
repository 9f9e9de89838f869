"""The commit: how a state becomes the one that a restart restores. The order of the numbered points is the promise.

A process may die, or be paused for an hour, between any two of them: before point 7 the last committed iteration is
what it was, after it the new one counts. A check before a rename can be outrun by a paused process; the committer's
compare-and-set cannot. Nothing is ever overwritten: what stands in the way is set aside. Each pair of points has a
failpoint between them, by the number of the one that is done.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from elastic.checkpoint.checksums import CHUNK_BYTES, facts_of
from elastic.checkpoint.layout import (
    COMMON,
    MANIFEST,
    METADATA,
    CommonInfo,
    aside_name,
    iteration_dir,
    parse_temp_name,
    temp_name,
)
from elastic.checkpoint.manifest import FileFacts, Manifest, record_of
from elastic.checkpoint.metadata import StoredTensor, TensorFacts, build_metadata
from elastic.checkpoint.seams import Committer, Group
from elastic.checkpoint.shards import Shard, encode_shard
from elastic.checkpoint.storage import Storage
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


def save_iteration(
    draft: Manifest, common: CommonInfo, shards: Callable[[], list[Shard]], *,
    root: str, storage: Storage, group: Group, committer: Committer, nonce: Callable[[], str],
    clock: Clock = SYSTEM_CLOCK,
) -> Outcome:  # fmt: skip
    """Make an iteration durable and commit it. Called by every rank; `draft` is the manifest without its files.

    Raises:
        PeerLost: from the group. Any other failure is an outcome.
    """
    lead = group.rank == 0
    # 1. A directory of this attempt alone, named by generation and nonce; leftovers of earlier ones go.
    begun = group.broadcast(_attempt(lambda: _begin(draft, root, storage, nonce())) if lead else None)
    if begun["fault"] is not None:
        return _failed(begun["fault"])
    failpoint("checkpoint.1")
    temp = os.path.join(root, begun["value"])
    # 2. Every rank writes its shards, each forced to disk, and tells their sizes and checksums.
    wrote = group.gather(_attempt(lambda: [_write_shard(temp, shard, storage) for shard in shards()]))
    failpoint("checkpoint.2")
    # 3.-8. Rank 0 does the rest and tells everyone how it ended.
    outcome: dict[str, Any] | None = None
    if wrote is not None:
        finished = _attempt(
            lambda: _finish(draft, common, _agreed(wrote), temp, root, storage, committer, nonce, clock)
        )
        outcome = finished["value"] or dataclasses.asdict(_failed(finished["fault"], stale=finished["fenced"]))
        if not outcome["committed"]:
            _attempt(lambda: storage.remove_tree(temp))
    return Outcome(**group.broadcast(outcome))


def _finish(
    draft: Manifest, common: CommonInfo, shards: list[dict[str, Any]], temp: str, root: str, storage: Storage,
    committer: Committer, nonce: Callable[[], str], clock: Clock,
) -> dict[str, Any]:  # fmt: skip
    # 3. The seed's two files.
    files = {shard["name"]: FileFacts(**shard["facts"]) for shard in shards}
    for name, data in ((COMMON, common.to_bytes()), (METADATA, build_metadata(_stored(shards)))):
        storage.write(os.path.join(temp, name), data)
        files[name] = facts_of(data)
    _await_visible(temp, files, storage, clock)
    failpoint("checkpoint.3")
    # 4. The manifest names every other file; with it the directory is complete, and its names are durable.
    manifest = dataclasses.replace(draft, files=files, chunk_bytes=CHUNK_BYTES)
    data = manifest.to_bytes()
    storage.write(os.path.join(temp, MANIFEST), data)
    storage.sync_dir(temp)
    failpoint("checkpoint.4")
    # 5. Its real name, by a rename that refuses to replace.
    final = os.path.join(root, iteration_dir(draft.iteration))
    _set_aside(draft, root, storage, nonce())
    storage.publish(temp, final)
    failpoint("checkpoint.5")
    # 6. The new name is durable.
    storage.sync_dir(root)
    failpoint("checkpoint.6")
    # 7. THE COMMIT: from here on it is what a restart restores.
    record = record_of(manifest, data)
    verdict = committer.commit(record)
    if not verdict.granted:
        return dataclasses.asdict(_failed(f"not committed: {verdict.reason}", stale=verdict.stale))
    failpoint("checkpoint.7")
    # 8. The tracker follows, for readers that know no record. Behind, it misleads nobody: the next save repairs it. A
    # process that was paused since point 7 leaves it alone: others may have gone on.
    fenced = committer.fence()
    late = fenced or _attempt(lambda: follow(root, manifest, storage=storage))["fault"]
    failpoint("checkpoint.8")
    total_bytes = len(data) + sum(facts.size_bytes for facts in files.values())
    reason = verdict.reason if late is None else f"{verdict.reason}; the tracker could not follow: {late}"
    return {
        "committed": True,
        "stale": False,
        "reason": reason,
        "total_bytes": total_bytes,
        "manifest_digest": record.manifest_digest,
        "fenced": fenced or "",
    }


def _begin(draft: Manifest, root: str, storage: Storage, nonce: str) -> str:
    for name in storage.names(root):
        generation = parse_temp_name(name)
        if generation is not None and generation <= draft.generation:
            storage.remove_tree(os.path.join(root, name))
    name = temp_name(iteration=draft.iteration, generation=draft.generation, nonce=nonce)
    storage.make_dir(os.path.join(root, name))
    return name


def _write_shard(temp: str, shard: Shard, storage: Storage) -> dict[str, Any]:
    data, facts = encode_shard(shard.tensors)
    storage.write(os.path.join(temp, shard.name), data)
    tensors = [each.to_plain() for each in facts]
    return {"name": shard.name, "facts": dataclasses.asdict(facts_of(data)), "tensors": tensors}


def _set_aside(draft: Manifest, root: str, storage: Storage, nonce: str) -> None:
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


def _stored(shards: list[dict[str, Any]]) -> list[StoredTensor]:
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


def _attempt(work: Callable[[], Any]) -> dict[str, Any]:
    """Do something; a failure becomes a value that can be told to the other ranks."""
    try:
        return {"value": work(), "fault": None, "fenced": False}
    except Exception as error:  # noqa: BLE001 - because peers wait: a failure of any kind must reach the vote
        return {"value": None, "fault": f"{type(error).__name__}: {error}", "fenced": isinstance(error, Fenced)}


def _failed(reason: str, *, stale: bool = False) -> Outcome:
    return Outcome(committed=False, stale=stale, reason=reason, total_bytes=0)
