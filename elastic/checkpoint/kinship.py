"""Kinship: one lineage for private directories, each of which was claimed on its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from elastic.checkpoint.layout import IDENTITY
from elastic.checkpoint.places import Places, share
from elastic.checkpoint.root import RootIdentity, identity_bytes
from elastic.checkpoint.seams import Committer, Group
from elastic.checkpoint.storage import Storage
from elastic.checkpoint.survey import survey
from elastic.errors import RunMismatch, StoreError, StoreUnavailable


@dataclass(frozen=True, kw_only=True)
class RootFacts:
    """What one place tells of its root."""

    lineage: str
    """That of its identity file."""
    held: tuple[str, ...]
    """Lineages of the iterations in it."""


@dataclass(frozen=True, kw_only=True)
class LineageVerdict:
    """The lineage of all places; None where they cannot be of one run."""

    lineage: str | None
    reason: str


def agree_lineage(roots: Sequence[RootFacts], *, recorded: str | None) -> LineageVerdict:
    """The lineage that was committed, else the only one of which there is an iteration, else the first place's."""
    if recorded is not None:
        return LineageVerdict(lineage=recorded, reason="the commit record is of this lineage")
    held = sorted({lineage for root in roots for lineage in root.held})
    if len(held) > 1:
        where = "; ".join(
            f"place {place} holds {', '.join(sorted(set(root.held)))}" for place, root in enumerate(roots) if root.held
        )
        return LineageVerdict(lineage=None, reason=f"iterations of several lineages, and no commit record: {where}")
    if held:
        return LineageVerdict(lineage=held[0], reason="all iterations there are of this lineage")
    return LineageVerdict(lineage=roots[0].lineage, reason="nothing was saved yet: the first place's identity counts")


def one_identity(
    root: str, identity: RootIdentity, *, places: Places, group: Group, committer: Committer, storage: Storage
) -> RootIdentity:
    """Give all places one identity. Every rank calls it; `committer` is asked on rank 0.

    Raises:
        RunMismatch: they hold iterations of different runs.
        StoreUnavailable: the commit record cannot be read.
        PeerLost: from the group.
    """
    recorded, fault = None, ""
    if group.rank == 0:
        try:
            record = committer.record()
            recorded = record.lineage if record is not None else None
        except StoreError as error:
            fault = str(error)
    told = group.broadcast({"recorded": recorded, "fault": fault})
    if told["fault"]:
        raise StoreUnavailable(told["fault"])
    facts = share(group, _facts(root, identity, storage) if places.lead else None)
    roots = [RootFacts(lineage=facts[lead]["lineage"], held=tuple(facts[lead]["held"])) for lead in places.leads]
    verdict = agree_lineage(roots, recorded=told["recorded"])
    if verdict.lineage is None:
        raise RunMismatch(
            f"the nodes' private save paths are of different runs: {verdict.reason}. Move away what does not belong "
            "to this run, or use another checkpoint.save_path."
        )
    agreed = RootIdentity(job_id=identity.job_id, lineage=verdict.lineage)
    if places.lead and agreed != identity:
        storage.replace(os.path.join(root, IDENTITY), identity_bytes(agreed))
    share(group, None)
    return agreed


def _facts(root: str, identity: RootIdentity, storage: Storage) -> dict[str, object]:
    held = {each.lineage for each in survey(root, storage=storage).in_place if each.lineage is not None}
    return {"lineage": identity.lineage, "held": sorted(held)}
