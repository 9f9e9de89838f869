"""A save into private directories: every place gets an iteration of its own, all with the same manifest.

The points are those of commit.py. Replicated state is written by each place in full, from its own memory; only what
each rank alone has travels. The record is the commit here, too: it names the manifest, and places that hold it are
equal. A place that cannot write, or whose replica differs, is left out and told, as long as another holds every file.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from elastic.checkpoint.background import Pending, Start, at_once
from elastic.checkpoint.checksums import CHUNK_BYTES, facts_of, fault_of
from elastic.checkpoint.commit import Outcome, Save, Saving, attempt, begin, failed, free_place, stored, write_image
from elastic.checkpoint.exchange import send
from elastic.checkpoint.holdings import Delivery
from elastic.checkpoint.image import Image
from elastic.checkpoint.layout import COMMON, MANIFEST, METADATA, CommonInfo, iteration_dir, temp_name
from elastic.checkpoint.manifest import FileFacts, Manifest, record_of
from elastic.checkpoint.metadata import build_metadata
from elastic.checkpoint.places import Places, share
from elastic.checkpoint.seams import Committer, CommitVerdict, Group
from elastic.checkpoint.shards import Shard, own_shards
from elastic.checkpoint.storage import Storage
from elastic.checkpoint.tracker import follow
from elastic.clock import Clock
from elastic.failpoint import failpoint


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gathered:
    """What all ranks wrote, seen together."""

    shards: tuple[dict[str, Any], ...]
    """Each file once."""
    files_of: dict[int, frozenset[str]]
    """By place that counts, its files: all that its ranks were to write, equal to those of the others."""
    out: tuple[str, ...]
    """Why other places do not count."""

    @property
    def kept_by(self) -> tuple[int, ...]:
        """The places that count."""
        return tuple(self.files_of)

    def held_by(self, places: Sequence[int]) -> bool:
        """Whether each file is in one of these places."""
        there = {name for place in places for name in self.files_of[place]}
        return bool(places) and there >= {each["name"] for each in self.shards}


class ApartSaving:
    """A save under way, from point 1 to point 8, as commit.py's `Saving`: every rank makes one and advances it alike.

    Messages are exchanged when it is made and in `advance`; between these `start` does the writing.
    """

    def __init__(
        self, draft: Manifest, common: CommonInfo, images: Callable[[], Sequence[Image]], *, root: str,
        storage: Storage, group: Group, places: Places, committer: Committer, nonce: Callable[[], str],
        start: Start = at_once,
    ) -> None:  # fmt: skip
        """`draft` is the manifest without its files; `images` are what this rank writes of its place's copy.

        Raises:
            PeerLost: from the group. Any other failure becomes the outcome.
        """
        self._draft, self._common, self._root, self._storage = draft, common, root, storage
        self._group, self._places, self._committer = group, places, committer
        self._nonce, self._start = nonce, start
        self._gathered: Gathered | None = None
        self._texts: dict[str, str] = {}
        # 1. A directory of this attempt, under the same name in every place.
        word = group.broadcast(nonce())
        self._temp = os.path.join(root, temp_name(iteration=draft.iteration, generation=draft.generation, nonce=word))
        told = share(group, attempt(lambda: begin(draft, root, storage, word)) if places.lead else None)
        self._begun = self._by_place(told)
        failpoint("checkpoint.1")
        # 2. Each place writes everything.
        self._working: Pending[dict[str, Any]] = start(lambda: attempt(lambda: self._write(images)))

    @property
    def written(self) -> bool:
        """Whether nobody reads this rank's images any more."""
        return self._gathered is not None or self._working.done()

    @property
    def ready(self) -> bool:
        """Whether this rank has done its part. Once all ranks have, each is to call `advance`."""
        return self._working.done()

    def advance(self) -> Outcome | None:
        """Go on by what this rank's part has come to, waiting for it if need be; the outcome at the end, None before.

        Raises:
            PeerLost: from the group.
        """
        told = share(self._group, self._working.result())
        if self._gathered is not None:
            return self._count(self._gathered, told)
        failpoint("checkpoint.2")
        found = self._gathered = gather(told, self._begun, places=self._places)
        lead = self._group.rank == 0
        texts = self._group.broadcast(attempt(lambda: _texts(self._draft, self._common, found)) if lead else None)
        if texts["fault"] is not None:
            return self._give_up(texts["fault"])
        self._texts = texts["value"]
        arrived = self._complete(found)
        # 3.-6. The other files, the manifest last, and the real name.
        self._working = (self._start if self._places.lead else at_once)(
            lambda: attempt(lambda: self._publish(found, arrived))
        )
        return None

    def _write(self, images: Callable[[], Sequence[Image]]) -> list[dict[str, Any]]:
        mine = images()  # also for a place that is out: what was wrong with the copy counts before that
        if self._begun[self._places.mine] is not None:
            return []
        return [write_image(self._temp, each, self._storage) for each in mine]

    def _complete(self, found: Gathered) -> str | None:
        """Give each place the files that only others wrote, parts of a state that no rank has whole; what failed here.

        So a place that is lost takes nothing with it. Training waits for this, since messages need all ranks.
        """
        fault: str | None = None
        for name, facts in {each["name"]: _facts(each["facts"]) for each in found.shards}.items():
            holders = [place for place in found.kept_by if name in found.files_of[place]]
            targets = tuple(place for place in found.kept_by if place not in holders)
            if not targets:
                continue
            path = os.path.join(self._temp, name)
            delivery = Delivery(name=name, size_bytes=facts.size_bytes, source=holders[0], targets=targets)
            sends = self._group.rank == self._places.leads[holders[0]]
            keeps = self._places.lead and self._places.mine in targets
            data, problem = send(delivery, path if sends else None, keeps, self._storage, self._group)
            if keeps:
                problem = problem or fault_of(bytes(data), facts, name=name)
                problem = problem or attempt(partial(self._storage.write, path, bytes(data)))["fault"]
                fault = fault or problem
        return fault

    def _publish(self, found: Gathered, missing: str | None) -> None:
        if not self._places.lead:
            return
        if missing is not None:
            self._storage.remove_tree(self._temp)
            raise OSError(missing)
        if self._places.mine not in found.kept_by:
            self._storage.remove_tree(self._temp)
            return
        for name in (COMMON, METADATA):
            self._storage.write(os.path.join(self._temp, name), self._texts[name].encode())
        failpoint("checkpoint.3")
        self._storage.write(os.path.join(self._temp, MANIFEST), self._texts[MANIFEST].encode())
        self._storage.sync_dir(self._temp)
        failpoint("checkpoint.4")
        free_place(self._draft, self._root, self._storage, self._nonce())
        self._storage.publish(self._temp, os.path.join(self._root, iteration_dir(self._draft.iteration)))
        failpoint("checkpoint.5")
        self._storage.sync_dir(self._root)
        failpoint("checkpoint.6")

    def _count(self, found: Gathered, told: list[dict[str, Any]]) -> Outcome:
        placed = self._by_place(told)
        out = [*found.out, *(f"place {place}: {fault}" for place, fault in enumerate(placed) if fault is not None)]
        kept = [place for place in found.kept_by if placed[place] is None]
        if not found.held_by(kept):
            stale = any(fault is not None and fault.startswith("Fenced:") for fault in placed)
            return self._give_up("; ".join(out), stale=stale)
        # 7. THE COMMIT, by one compare-and-set, for all places.
        data = self._texts[MANIFEST].encode()
        manifest = Manifest.from_bytes(data)
        record = record_of(manifest, data)
        answer = dataclasses.asdict(self._committer.commit(record)) if self._group.rank == 0 else None
        verdict = CommitVerdict(**self._group.broadcast(answer))
        if not verdict.granted:
            return self._give_up(f"not committed: {verdict.reason}", stale=verdict.stale)
        failpoint("checkpoint.7")
        # 8. The tracker of each place follows.
        fenced = self._committer.fence() if self._group.rank == 0 else None
        late = None
        if self._places.lead and self._places.mine in kept:
            late = fenced or attempt(lambda: follow(self._root, manifest, storage=self._storage))["fault"]
        failpoint("checkpoint.8")
        lates = share(self._group, [late, fenced])
        behind = (
            f"; the tracker of rank {rank} could not follow: {each[0]}" for rank, each in enumerate(lates) if each[0]
        )
        return Outcome(
            committed=True,
            stale=False,
            reason=verdict.reason + "".join(behind),
            total_bytes=len(data) + sum(facts.size_bytes for facts in manifest.files.values()),
            manifest_digest=record.manifest_digest,
            fenced=lates[0][1] or "",
            left_out="; ".join(out),
        )

    def _by_place(self, told: list[dict[str, Any]]) -> list[str | None]:
        """What the lead of each place said was wrong."""
        return [told[lead]["fault"] for lead in self._places.leads]

    def _give_up(self, reason: str, *, stale: bool = False) -> Outcome:
        if self._places.lead:
            attempt(lambda: self._storage.remove_tree(self._temp))
        return failed(reason, stale=stale)


def begin_saving(
    draft: Manifest, common: CommonInfo, images: Callable[[], Sequence[Image]], *, places: Places | None,
    clock: Clock, **parts: Any,
) -> Save:  # fmt: skip
    """The save that suits the directories there are. `parts`: as of either. Raises PeerLost."""
    if places is None:
        return Saving(draft, common, images, clock=clock, **parts)
    return ApartSaving(draft, common, images, places=places, **parts)


def gather(wrote: list[dict[str, Any]], begun: list[str | None], *, places: Places) -> Gathered:
    """Put together what ranks wrote: a place counts if it wrote all and its files are those of the places before it."""
    faults = {place: f"place {place}: {fault}" for place, fault in enumerate(begun) if fault is not None}
    shards: dict[str, dict[str, Any]] = {}
    files_of: dict[int, frozenset[str]] = {}
    for place in range(places.count):
        ranks = [rank for rank, each in enumerate(places.of_rank) if each == place]
        for rank in ranks:
            if wrote[rank]["fault"] is not None:
                faults.setdefault(place, f"rank {rank}: {wrote[rank]['fault']}")
        if place in faults:
            continue
        mine = {each["name"]: each | {"rank": rank} for rank in ranks for each in wrote[rank]["value"]}
        if differing := sorted(
            name for name in mine if name in shards and mine[name]["facts"] != shards[name]["facts"]
        ):
            faults[place] = f"place {place}: its {differing[0]} differs from that of another node"
            continue
        files_of[place] = frozenset(mine)
        shards = mine | shards
    out = tuple(faults[each] for each in sorted(faults))
    return Gathered(shards=tuple(shards.values()), files_of=files_of, out=out)


def _texts(draft: Manifest, common: CommonInfo, found: Gathered) -> dict[str, str]:
    """The three small files, as text."""
    if not found.kept_by:
        raise OSError("; ".join(found.out))
    shards = list(found.shards)
    texts = {COMMON: common.to_bytes(), METADATA: build_metadata(stored(shards))}
    files = {each["name"]: _facts(each["facts"]) for each in shards}
    files |= {name: facts_of(data) for name, data in texts.items()}
    texts[MANIFEST] = dataclasses.replace(draft, files=files, chunk_bytes=CHUNK_BYTES).to_bytes()
    return {name: data.decode() for name, data in texts.items()}


def _facts(plain: dict[str, Any]) -> FileFacts:
    chunks = tuple((end, crc32) for end, crc32 in plain["chunks"])
    return FileFacts(size_bytes=plain["size_bytes"], crc32=plain["crc32"], chunks=chunks)


def exchange(own: dict[str, Tensor], *, group: Group) -> dict[str, Tensor]:
    """What each rank has of its own, small tensors of bytes (states of random number generators), of all ranks.

    Raises:
        PeerLost: from the group.
    """
    told = share(group, {name: tensor.numpy().tobytes().hex() for name, tensor in own.items()})
    together = {name: text for each in told for name, text in each.items()}
    return {name: torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8) for name, text in together.items()}


def place_shards(
    model: Mapping[str, Tensor], opt: Mapping[str, Tensor], *, places: Places, prefix: str
) -> list[Shard]:  # fmt: skip
    """The files that this rank writes of its place's whole copy, numbered alike in every place."""
    if places.index >= places.writers:
        return []
    return own_shards(
        model=model, opt=opt, own={}, rank=places.index, world_size=places.writers, prefix=prefix
    )  # fmt: skip
