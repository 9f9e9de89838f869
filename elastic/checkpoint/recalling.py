"""Restoring from memory: which copy may be gone on from, and how every rank comes to have it.

A copy is ahead of the commit record. It may be gone on from if it lies on the line that leads on from there: copies of
the generation that the record bears do, since that generation went on from the record or wrote it, step after step.
An older generation's copy may be of a line that others left meanwhile. Where nothing was ever committed, nor lies on
disk, there is no line to be left: the newest generation's copy will do.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from elastic.checkpoint.arena import Held, tensors_of
from elastic.checkpoint.arrivals import PEER, Arrivals
from elastic.checkpoint.layout import CommitRecord, Health, ShardKind, parse_shard_name
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.placing import home_of
from elastic.checkpoint.reading import read_manifest
from elastic.checkpoint.restoring import Plan
from elastic.checkpoint.seams import Group
from elastic.checkpoint.shards import original_form
from elastic.checkpoint.shards import size_bytes as bytes_of
from elastic.checkpoint.state import Captured
from elastic.checkpoint.storage import Storage, large_memory
from elastic.errors import CheckpointDamaged

_CHUNK_BYTES = 64 << 20
_ALIGN_BYTES = 64

Offers = dict[str, list[dict[str, Any]]]
"""What one rank offers: `whole` copies and `parts`."""


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A whole copy that a rank can reach. Equal offers are the same state."""

    lineage: str
    generation: int
    iteration: int
    consumed_samples: int
    run_digest: int
    ckpt_status: int | None


@dataclass(frozen=True, kw_only=True)
class Pick:
    """What to go on from, and who has it; None: nothing in memory, for this reason."""

    offer: Offer | None
    reason: str
    holders: tuple[int, ...] = ()
    parts: tuple[tuple[int, ...], ...] = ()
    """Where it is dealt out: of each rank that it was dealt out over, who has the part. Else nothing."""


@dataclass(frozen=True, kw_only=True)
class PartOffer:
    """One rank's part of a copy, of as many as `ranks`."""

    offer: Offer
    rank: int
    ranks: int

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> PartOffer:
        """Read back what `asdict` made."""
        return cls(**(plain | {"offer": Offer(**plain["offer"])}))


def offer_of(held: Held) -> Offer:
    """What can be told of a copy in a few words."""
    manifest = held.manifest
    return Offer(
        lineage=manifest.lineage,
        generation=manifest.generation,
        iteration=manifest.iteration,
        consumed_samples=manifest.consumed_samples,
        run_digest=manifest.run_digest,
        ckpt_status=manifest.ckpt_status,
    )


def pick(
    offers: Sequence[Sequence[Offer]], *, record: CommitRecord | None, lineage: str, newest_on_disk: int,
    load_unhealthy: bool = False,
) -> Pick:  # fmt: skip
    """Choose from what the ranks offer (by rank): the newest copy that goes on from the record, if it beats the disk.

    `lineage`: the run's. `newest_on_disk`: the iteration that would be restored from there. A copy in memory of the
    same one is faster.
    """
    if record is None and newest_on_disk:
        return Pick(offer=None, reason="no record says which line a copy in memory must be of")
    if not any(offers):
        return Pick(offer=None, reason="no rank has a copy of the state in memory")
    faults: list[str] = []
    fit: set[Offer] = set()
    for offer in {each for own in offers for each in own}:
        if (fault := _fault(offer, record, lineage, newest_on_disk, load_unhealthy)) is None:
            fit.add(offer)
        else:
            faults.append(f"the copy of iteration {offer.iteration} in memory {fault}")
    if not fit:
        return Pick(offer=None, reason="; ".join(sorted(faults)))
    best = max(fit, key=lambda each: (each.generation, each.iteration))
    holders = tuple(rank for rank, own in enumerate(offers) if best in own)
    reason = f"the newest copy in memory, on {len(holders)} of {len(offers)} ranks; {_committed(record)}"
    return Pick(offer=best, holders=holders, reason=reason)


def pick_parts(
    offers: Sequence[Sequence[PartOffer]], *, record: CommitRecord | None, lineage: str, newest_on_disk: int,
    load_unhealthy: bool = False,
) -> Pick:  # fmt: skip
    """The same of states that are dealt out: the newest of which every part is offered by some rank."""
    holders: dict[tuple[Offer, int], dict[int, list[int]]] = {}
    for at, own in enumerate(offers):
        for each in own:
            holders.setdefault((each.offer, each.ranks), {}).setdefault(each.rank, []).append(at)
    complete: dict[Offer, tuple[tuple[int, ...], ...]] = {}
    missing = []
    for (offer, ranks), found in holders.items():
        if lacking := [rank for rank in range(ranks) if rank not in found]:
            missing.append(f"of iteration {offer.iteration} the parts of ranks {lacking} of {ranks} are gone")
        else:
            complete[offer] = tuple(tuple(found[rank]) for rank in range(ranks))
    chosen = pick(
        [list(complete)],
        record=record,
        lineage=lineage,
        newest_on_disk=newest_on_disk,
        load_unhealthy=load_unhealthy,
    )
    if chosen.offer is None:
        return replace(chosen, reason="; ".join([*([chosen.reason] if complete else []), *sorted(missing)]))
    parts = complete[chosen.offer]
    reason = f"the newest copy in memory of which all {len(parts)} parts are there; {_committed(record)}"
    return replace(chosen, holders=(), parts=parts, reason=reason)


def _committed(record: CommitRecord | None) -> str:
    return "nothing was committed yet" if record is None else f"committed was iteration {record.iteration}"


def _fault(
    offer: Offer, record: CommitRecord | None, lineage: str, newest_on_disk: int, load_unhealthy: bool
) -> str | None:
    if offer.lineage != lineage:
        return f"is of lineage {offer.lineage}, not {lineage}"
    if offer.ckpt_status == Health.ABNORMAL and not load_unhealthy:
        return "is marked unhealthy"
    if record is None:
        return None
    if offer.generation != record.generation:
        return f"is of generation {offer.generation}; others have gone on in generation {record.generation}"
    if offer.iteration < record.iteration or offer.consumed_samples < record.consumed_samples:
        return f"is older than the committed iteration {record.iteration}"
    if offer.iteration < newest_on_disk:
        return f"is older than iteration {newest_on_disk} on disk"
    return None


def decide(
    offers: Sequence[Offers], *, record: CommitRecord | None, lineage: str, plan: Plan, load_unhealthy: bool,
    storage: Storage,
) -> dict[str, Any]:  # fmt: skip
    """On rank 0: what to take from memory, what was committed last, and all that was committed on the way to it."""
    newest = plan.attempts[0].iteration if plan.attempts else 0
    chosen = pick(
        [[Offer(**each) for each in own["whole"]] for own in offers],
        record=record,
        lineage=lineage,
        newest_on_disk=newest,
        load_unhealthy=load_unhealthy,
    )
    if any(own["parts"] for own in offers):
        in_parts = pick_parts(
            [[PartOffer.from_plain(each) for each in own["parts"]] for own in offers],
            record=record,
            lineage=lineage,
            newest_on_disk=newest,
            load_unhealthy=load_unhealthy,
        )
        chosen = _newer(chosen, in_parts)
    told: dict[str, Any] = {"pick": asdict(chosen), "ancestors": [], "durable": 0}
    if record is not None and chosen.offer is not None:
        digest = record.manifest_digest
        told |= {"ancestors": [digest], "durable": record.iteration}
        for each in plan.attempts:
            if each.manifest_digest == digest:
                with contextlib.suppress(CheckpointDamaged):  # then no more is known than what was committed last
                    manifest = read_manifest(each.directory, storage=storage, manifest_digest=digest)
                    told["ancestors"] = [*manifest.ancestors, digest]
    return told


def _newer(one: Pick, other: Pick) -> Pick:
    if one.offer is None or other.offer is None:
        return other if one.offer is None else one
    return other if other.offer.iteration > one.offer.iteration else one


def from_plain(plain: dict[str, Any]) -> Pick:
    """Read back a pick that was told as JSON."""
    offer = Offer(**plain["offer"]) if plain["offer"] is not None else None
    parts = tuple(tuple(each) for each in plain["parts"])
    return Pick(offer=offer, reason=plain["reason"], holders=tuple(plain["holders"]), parts=parts)


def offers_of(held: Sequence[Held]) -> Offers:
    """What a rank offers of all that lies in its node's memory, JSON types; each state and part once."""
    parts = [
        PartOffer(offer=offer_of(each), rank=each.rank, ranks=each.manifest.world_size)
        for each in held
        if each.pieces is not None
    ]
    whole = dict.fromkeys(offer_of(each) for each in held if each.whole)
    return {"whole": [asdict(each) for each in whole], "parts": [asdict(each) for each in dict.fromkeys(parts)]}


def held_parts(held: Sequence[Held], offer: Offer | None) -> dict[int, Held]:
    """By rank that it was dealt out over: the parts of a state that lie here."""
    return {each.rank: each for each in reversed(held) if each.pieces is not None and offer_of(each) == offer}


def fetch(
    pick: Pick, held: Held | None, *, group: Group, arrivals: Arrivals
) -> tuple[Manifest, dict[str, memoryview]]:  # fmt: skip
    """The chosen copy on every rank: its own, or that of the first holder. All ranks call it.

    Raises:
        PeerLost: from the group.
    """
    source = pick.holders[0]
    about = group.gather(_about(held) if held is not None and group.rank == source else None)
    told = group.broadcast(None if about is None else about[source])
    images: dict[str, memoryview] = {}
    for name, size_bytes in told["images"]:
        image = held.images[name] if held is not None and group.rank == source else None
        arrived = torch.empty(size_bytes if held is None else 0, dtype=torch.uint8)
        count = arrivals.begin(PEER, givers=(source,))
        for start in range(0, size_bytes, _CHUNK_BYTES):
            # Bytes are added as integers, and all ranks but one add 0.
            chunk = torch.zeros(min(_CHUNK_BYTES, size_bytes - start), dtype=torch.uint8)
            if image is not None:
                chunk.copy_(torch.frombuffer(image, dtype=torch.uint8, count=len(chunk), offset=start))
            group.sum_(chunk)
            if held is None:
                arrived[start : start + len(chunk)] = chunk
                count(len(chunk))
        images[name] = memoryview(arrived.numpy())  # type: ignore[arg-type]
    if held is not None:
        return held.manifest, dict(held.images)
    return Manifest.from_bytes(told["manifest"].encode()), images


def _about(held: Held) -> dict[str, Any]:
    return {
        "manifest": held.manifest.to_bytes().decode(),
        "images": [[name, len(image)] for name, image in held.images.items()],
    }


def kept_of(viewed: Captured, *, live: Mapping[str, Tensor]) -> Captured:
    """The same with copies of what an optimizer keeps, since images will be written again: in `live`, its own
    tensors, where that can be done."""
    return replace(viewed, opt=_kept(viewed.opt, live))


def viewed_in(manifest: Manifest, images: Mapping[str, memoryview]) -> Captured:
    """A state as it lies in its images.

    Raises:
        CheckpointDamaged: they are not what the manifest says.
    """
    parts: dict[ShardKind, dict[str, Tensor]] = {ShardKind.MODEL: {}, ShardKind.OPT: {}}
    notes = manifest.values.get("tensors", {})
    for name, image in images.items():
        shard = parse_shard_name(name)
        if shard is None:
            raise CheckpointDamaged(f"in memory: {name!r:.80} is no shard")
        for each, tensor in tensors_of(name, image).items():
            parts[shard.kind][each] = original_form(tensor, notes.get(each))
    return Captured(model=parts[ShardKind.MODEL], opt=parts[ShardKind.OPT], own=True, values=dict(manifest.values))


@torch.no_grad()
def _kept(tensors: Mapping[str, Tensor], live: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies: in the tensors that are there, or in memory of their own, all in one piece: taking many takes longer."""
    kept: dict[str, Tensor] = {}
    sizes = {name: -(-bytes_of(each) // _ALIGN_BYTES) * _ALIGN_BYTES for name, each in tensors.items()}
    homes = {name: home for name, each in tensors.items() if (home := home_of(live.get(name), each)) is not None}
    memory = large_memory(sum(size for name, size in sizes.items() if name not in homes))
    at = 0
    for name, tensor in tensors.items():
        if (target := homes.get(name)) is None:
            dense = tensor.numel() > 0 and tensor.is_contiguous()
            target = torch.empty_like(tensor)
            if dense:
                flat = torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=at)
                target = flat.view(tensor.shape)
                at += sizes[name]
        kept[name] = target.copy_(tensor)
    return kept
