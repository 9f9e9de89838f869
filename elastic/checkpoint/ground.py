"""Where a save goes: how ranks come to agree at each of its points, in one directory that all share or in several."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from elastic.checkpoint.layout import MANIFEST, CommonInfo
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.outcome import Outcome, attempt, failed
from elastic.checkpoint.seams import CommitVerdict, Group
from elastic.checkpoint.writing import texts_of


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What all directories came to, before the commit."""

    fault: str | None = None
    """Why it cannot be committed."""
    stale: bool = False
    """Whether that is because a newer generation exists."""
    kept: bool = True
    """Whether this rank's directory holds it."""
    left_out: str = ""
    """Which directories do not hold it, and why."""


@dataclass(frozen=True, kw_only=True)
class Late:
    """What became of the tracker. `reason`: for the reason of the commit; empty where it followed everywhere."""

    reason: str
    fenced: str


class Ground(Protocol):
    """For one save. Every rank makes one, and all call its methods at the same points. Raises PeerLost."""

    @property
    def lead(self) -> bool:
        """Whether this rank acts for its directory."""
        ...

    def collect(self, wrote: dict[str, Any], *, temp: str) -> str | None:
        """Tell what this rank wrote into `temp`, as `attempt` gave it. Why the save ends here on all ranks, or None."""
        ...

    def texts(self) -> Mapping[str, bytes] | None:
        """The three small files; None where this rank has none to write. No messages. Raises OSError: why not."""
        ...

    def decide(self, work: Callable[[], Outcome]) -> Outcome:
        """Do the rest on whichever ranks it takes, and give all of them the outcome."""
        ...

    def standing(self, published: dict[str, Any]) -> Standing:
        """Inside `decide`: what came of it everywhere. `published`: what `attempt` gave here."""
        ...

    def manifest(self) -> bytes:
        """Inside `decide`, where nothing is wrong: the manifest's text."""
        ...

    def ask(self, commit: Callable[[], CommitVerdict]) -> CommitVerdict:
        """Inside `decide`: have it committed, once."""
        ...

    def follow(self, fence: Callable[[], str | None], move: Callable[[], None], *, kept: bool) -> Late:
        """Inside `decide`: move the tracker where the iteration is kept, unless the fence stands."""
        ...


class OneDirectory:
    """All ranks share one: rank 0 acts, and alone knows, until it tells the outcome."""

    def __init__(self, draft: Manifest, common: CommonInfo, *, group: Group) -> None:
        self._draft, self._common, self._group = draft, common, group
        self._wrote: list[dict[str, Any]] = []
        self._texts: Mapping[str, bytes] | None = None

    @property
    def lead(self) -> bool:
        """Whether this is rank 0."""
        return self._group.rank == 0

    def collect(self, wrote: dict[str, Any], *, temp: str) -> str | None:
        """One message. What ranks could not do is told with the outcome."""
        self._wrote = self._group.gather(wrote) or []
        return None

    def texts(self) -> Mapping[str, bytes] | None:
        """On rank 0, made when they are first asked for: with many tensors that takes a while."""
        if self.lead and self._texts is None:
            self._texts = texts_of(self._draft, self._common, _agreed(self._wrote))
        return self._texts

    def decide(self, work: Callable[[], Outcome]) -> Outcome:
        """On rank 0; one message."""
        outcome = None
        if self.lead:
            ended = attempt(work)
            outcome = dataclasses.asdict(ended["value"] or failed(ended["fault"], stale=ended["fenced"]))
        return Outcome(**self._group.broadcast(outcome))

    def standing(self, published: dict[str, Any]) -> Standing:
        """That of the one directory."""
        return Standing(fault=published["fault"], stale=published["fenced"])

    def manifest(self) -> bytes:
        """As it was written."""
        return (self._texts or {})[MANIFEST]

    def ask(self, commit: Callable[[], CommitVerdict]) -> CommitVerdict:
        """On rank 0 as it is."""
        return commit()

    def follow(self, fence: Callable[[], str | None], move: Callable[[], None], *, kept: bool) -> Late:
        """The only tracker."""
        fenced = fence()
        late = fenced or attempt(move)["fault"]
        return Late(reason=f"; the tracker could not follow: {late}" if late else "", fenced=fenced or "")


def _agreed(wrote: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All shards of all ranks, if all were written."""
    faults = [f"rank {rank}: {each['fault']}" for rank, each in enumerate(wrote) if each["fault"] is not None]
    if faults:
        raise OSError("; ".join(faults))
    return [shard | {"rank": rank} for rank, each in enumerate(wrote) for shard in each["value"]]
