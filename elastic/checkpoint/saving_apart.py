"""A save into private directories: every place gets an iteration of its own, all with the same manifest.

The order is commit.py's. Replicated state is written by each place in full, from its own memory; only what
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

from elastic.checkpoint.checksums import fault_of
from elastic.checkpoint.commit import Saving
from elastic.checkpoint.exchange import send
from elastic.checkpoint.ground import Course, Points, counted, refused, seal
from elastic.checkpoint.holdings import Delivery
from elastic.checkpoint.image import Image
from elastic.checkpoint.layout import MANIFEST, CommonInfo
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.outcome import attempt, failed
from elastic.checkpoint.places import Places, share
from elastic.checkpoint.seams import CommitVerdict, Group
from elastic.checkpoint.shards import Shard, own_shards
from elastic.checkpoint.storage import Storage
from elastic.checkpoint.writing import file_facts, texts_of
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
    """What all places came to, before the commit."""

    fault: str | None
    """Why it cannot be committed."""
    stale: bool
    """Whether that is because a newer generation exists."""
    kept: bool
    """Whether this rank's place holds it."""
    left_out: str
    """Which places do not hold it, and why."""


class PrivateDirectories:
    """The ground of a save into several: all ranks know what each came to, and go through every point together."""

    def __init__(self, draft: Manifest, common: CommonInfo, *, storage: Storage, group: Group, places: Places) -> None:
        self._draft, self._common, self._storage = draft, common, storage
        self._group, self._places = group, places
        self._found = Gathered(shards=(), files_of={}, out=())
        self._texts: Mapping[str, bytes] = {}
        self._missing: str | None = None

    @property
    def lead(self) -> bool:
        """Whether this rank acts for its place."""
        return self._places.lead

    def collect(self, wrote: dict[str, Any], *, temp: str) -> str | None:
        """Put together what all wrote, and bring each place what only others did."""
        told = share(self._group, wrote)
        found = self._found = gather(told, places=self._places)
        texts = self._group.broadcast(attempt(lambda: self._make_texts(found)) if self._group.rank == 0 else None)
        if texts["fault"] is not None:
            return str(texts["fault"])
        self._texts = {name: text.encode() for name, text in texts["value"].items()}
        self._missing = self._complete(found, temp)
        return None

    def conclude(self, points: Points) -> Course:
        """Each place publishes its own; one compare-and-set counts for all; then each tracker follows."""
        published = yield (lambda: self._publish(points)) if self.lead else None
        standing = self._standing(published)
        if standing.fault is not None:
            return failed(standing.fault, stale=standing.stale)
        first = self._group.rank == 0
        sealed = seal(self._texts[MANIFEST])
        asked = yield (lambda: points.commit(sealed.record)) if first else None
        verdict = asked["value"] or CommitVerdict(granted=False, reason=str(asked["fault"]), stale=asked["fenced"])
        verdict = CommitVerdict(**self._group.broadcast(dataclasses.asdict(verdict) if first else None))
        if not verdict.granted:
            return refused(verdict)
        failpoint("checkpoint.7")
        followed = yield lambda: self._follow(points, sealed.manifest, kept=standing.kept)
        lates = share(self._group, followed["value"] or [followed["fault"], None])
        failpoint("checkpoint.8")
        if not standing.kept:
            points.remove()
        behind = (
            f"; the tracker of rank {rank} could not follow: {each[0]}" for rank, each in enumerate(lates) if each[0]
        )
        return counted(sealed, reason=verdict.reason + "".join(behind), fenced=lates[0][1], left_out=standing.left_out)

    def _publish(self, points: Points) -> None:
        if self._missing is not None:
            raise OSError(self._missing)
        if self._places.mine in self._found.kept_by:
            points.publish(self._texts)

    def _follow(self, points: Points, manifest: Manifest, *, kept: bool) -> list[str | None]:
        """What became of the tracker here, and whether a fence stood before it."""
        fenced = points.fence() if self._group.rank == 0 else None
        late = fenced or points.follow(manifest) if self.lead and kept else None
        return [late, fenced]

    def _standing(self, published: dict[str, Any]) -> Standing:
        """Whether each file is in a place where everything went well. The texts are the same in every place."""
        placed = self._by_place(share(self._group, published))
        found = self._found
        out = [*found.out, *(f"place {place}: {fault}" for place, fault in enumerate(placed) if fault is not None)]
        kept = [place for place in found.kept_by if placed[place] is None]
        stale = any(fault is not None and fault.startswith("Fenced:") for fault in placed)
        fault = None if found.held_by(kept) else "; ".join(out)
        return Standing(fault=fault, stale=stale, kept=self._places.mine in kept, left_out="; ".join(out))

    def _make_texts(self, found: Gathered) -> dict[str, str]:
        if not found.kept_by:
            raise OSError("; ".join(found.out))
        return {name: data.decode() for name, data in texts_of(self._draft, self._common, found.shards).items()}

    def _complete(self, found: Gathered, temp: str) -> str | None:
        """Give each place the files that only others wrote, parts of a state that no rank has whole; what failed here.

        So a place that is lost takes nothing with it. Training waits for this, since messages need all ranks.
        """
        fault: str | None = None
        for name, facts in {each["name"]: file_facts(each["facts"]) for each in found.shards}.items():
            holders = [place for place in found.kept_by if name in found.files_of[place]]
            targets = tuple(place for place in found.kept_by if place not in holders)
            if not targets:
                continue
            path = os.path.join(temp, name)
            delivery = Delivery(name=name, size_bytes=facts.size_bytes, source=holders[0], targets=targets)
            sends = self._group.rank == self._places.leads[holders[0]]
            keeps = self._places.lead and self._places.mine in targets
            data, problem = send(delivery, path if sends else None, keeps, self._storage, self._group)
            if keeps:
                problem = problem or fault_of(bytes(data), facts, name=name)
                problem = problem or attempt(partial(self._storage.write, path, bytes(data)))["fault"]
                fault = fault or problem
        return fault

    def _by_place(self, told: list[dict[str, Any]]) -> list[str | None]:
        """What the lead of each place said was wrong."""
        return [told[lead]["fault"] for lead in self._places.leads]


def begin_saving(
    draft: Manifest, common: CommonInfo, images: Callable[[], Sequence[Image]], *, places: Places | None,
    root: str, storage: Storage, group: Group, **parts: Any,
) -> Saving:  # fmt: skip
    """A save into the directories there are. `parts`: further ones of `Saving`. Raises PeerLost."""
    ground = None
    if places is not None:
        ground = PrivateDirectories(draft, common, storage=storage, group=group, places=places)
    return Saving(draft, common, images, root=root, storage=storage, group=group, ground=ground, **parts)


def gather(wrote: list[dict[str, Any]], *, places: Places) -> Gathered:
    """Put together what ranks wrote: a place counts if it wrote all and its files are those of the places before it."""
    faults: dict[int, str] = {}
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
