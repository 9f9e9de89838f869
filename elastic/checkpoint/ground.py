"""Where a save goes: how ranks come to agree at each of its points, in one directory that all share or in several."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol, TypeAlias

from elastic.checkpoint.layout import MANIFEST, CommitRecord, CommonInfo
from elastic.checkpoint.manifest import Manifest, record_of
from elastic.checkpoint.outcome import Outcome, failed
from elastic.checkpoint.seams import CommitVerdict, Group
from elastic.checkpoint.writing import texts_of
from elastic.failpoint import failpoint

Course: TypeAlias = Generator["Callable[[], Any] | None", dict[str, Any], Outcome]
"""Yields what is to be done beside the training, None where this rank has nothing to do, and is sent what `attempt`
made of it once all ranks are done; only then does it talk to them."""


class Points(Protocol):
    """Points 3 to 8 of a save, for one directory and without messages. Each may take long."""

    def publish(self, texts: Mapping[str, bytes]) -> None:
        """Write the small files and give the directory its name. Raises OSError, or Fenced."""
        ...

    def commit(self, record: CommitRecord) -> CommitVerdict:
        """Ask the committer."""
        ...

    def fence(self) -> str | None:
        """Why the tracker may not be moved."""
        ...

    def follow(self, manifest: Manifest) -> str | None:
        """Move the tracker. Why it could not follow, or None."""
        ...

    def remove(self) -> None:
        """Remove what was written here."""
        ...


class Ground(Protocol):
    """For one save. Every rank makes one, and all call its methods at the same points. Raises PeerLost."""

    @property
    def lead(self) -> bool:
        """Whether this rank acts for its directory."""
        ...

    def collect(self, wrote: dict[str, Any], *, temp: str) -> str | None:
        """Tell what this rank wrote into `temp`, as `attempt` gave it. Why the save ends here on all ranks, or None."""
        ...

    def conclude(self, points: Points) -> Course:
        """Do the rest on whichever ranks it takes, and give all of them the outcome."""
        ...


class OneDirectory:
    """All ranks share one: rank 0 acts, and alone knows, until it tells the outcome."""

    def __init__(self, draft: Manifest, common: CommonInfo, *, group: Group) -> None:
        self._draft, self._common, self._group = draft, common, group
        self._wrote: list[dict[str, Any]] = []

    @property
    def lead(self) -> bool:
        """Whether this is rank 0."""
        return self._group.rank == 0

    def collect(self, wrote: dict[str, Any], *, temp: str) -> str | None:
        """One message. What ranks could not do is told with the outcome."""
        self._wrote = self._group.gather(wrote) or []
        return None

    def conclude(self, points: Points) -> Course:
        """All on rank 0, beside the training; one message."""
        done = yield (lambda: self._conclude(points)) if self.lead else None
        outcome = done["value"] or failed(str(done["fault"]), stale=done["fenced"])
        return Outcome(**self._group.broadcast(dataclasses.asdict(outcome) if self.lead else None))

    def _conclude(self, points: Points) -> Outcome:
        texts = texts_of(self._draft, self._common, _agreed(self._wrote))  # with many tensors that takes a while
        points.publish(texts)
        sealed = seal(texts[MANIFEST])
        verdict = points.commit(sealed.record)
        if not verdict.granted:
            return refused(verdict)
        failpoint("checkpoint.7")
        fenced = points.fence()
        late = fenced or points.follow(sealed.manifest)
        failpoint("checkpoint.8")
        late = f"; the tracker could not follow: {late}" if late else ""
        return counted(sealed, reason=verdict.reason + late, fenced=fenced)


def refused(verdict: CommitVerdict) -> Outcome:
    """What the committer did not grant."""
    return failed(f"not committed: {verdict.reason}", stale=verdict.stale)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sealed:
    """A manifest as it was written, read once, and the record that makes it count."""

    manifest: Manifest
    record: CommitRecord
    size_bytes: int
    """Of the manifest and all files that it names."""


def seal(data: bytes) -> Sealed:
    """Of a manifest's bytes."""
    manifest = Manifest.from_bytes(data)
    size_bytes = len(data) + sum(facts.size_bytes for facts in manifest.files.values())
    return Sealed(manifest=manifest, record=record_of(manifest, data), size_bytes=size_bytes)


def counted(sealed: Sealed, *, reason: str, fenced: str | None, left_out: str = "") -> Outcome:
    """The outcome of a save that counts."""
    return Outcome(
        committed=True,
        stale=False,
        reason=reason,
        total_bytes=sealed.size_bytes,
        manifest_digest=sealed.record.manifest_digest,
        fenced=fenced or "",
        left_out=left_out,
    )


def _agreed(wrote: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All shards of all ranks, if all were written."""
    faults = [f"rank {rank}: {each['fault']}" for rank, each in enumerate(wrote) if each["fault"] is not None]
    if faults:
        raise OSError("; ".join(faults))
    return [shard | {"rank": rank} for rank, each in enumerate(wrote) for shard in each["value"]]
