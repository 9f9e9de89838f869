"""Standing: what each rank has of the run in its own tensors, and whose state all go on from. Pure.

After a fault ranks may differ by one step, and some have nothing. The newest state of the newest generation wins; who
has another one, or none, gets it. A state counts only if it goes on from what was committed last: a generation that
committed later has left this line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from elastic.checkpoint.layout import CommitRecord


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The state that a rank has in its tensors, after its last committed step."""

    lineage: str
    generation: int
    """The one in which it took its last step, or took this state over."""
    iteration: int
    consumed_samples: int
    run_digest: int
    content: int
    """A digest of all that must be equal on all ranks."""
    durable: int = 0
    """The last committed iteration that it goes on from; 0: none."""
    ancestors: tuple[str, ...] = ()

    @property
    def point(self) -> tuple[str, int, int, int]:
        """Where in the run it is, whatever the generation."""
        return (self.lineage, self.iteration, self.consumed_samples, self.run_digest)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Whose state all go on from; `standing` None: nobody's, for this reason."""

    standing: Standing | None
    reason: str
    sources: tuple[int, ...] = ()
    """The ranks that have it."""
    behind: tuple[int, ...] = ()
    """The ranks that must get it."""
    differ: tuple[int, ...] = ()
    """Those among them that are at the same point with other bits: a fault of a machine, or of the job's code."""

    def to_plain(self) -> dict[str, Any]:
        """As JSON types."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Choice:
        """Read it back."""
        known = {key: tuple(value) for key, value in plain.items() if key in ("sources", "behind", "differ")}
        return cls(standing=standing_from(plain["standing"]), reason=plain["reason"], **known)


def standing_from(plain: dict[str, Any] | None) -> Standing | None:
    """Read back what was told as JSON."""
    return None if plain is None else Standing(**{**plain, "ancestors": tuple(plain["ancestors"])})


def choose(standings: Sequence[Standing | None], *, record: CommitRecord | None) -> Choice:
    """Choose from what the ranks have, by rank. `record`: what was committed last, if anything was."""
    if not any(standings):
        return Choice(standing=None, reason="no worker has kept its state")
    faults = [None if each is None else _fault(each, record) for each in standings]
    fit = [each for each, fault in zip(standings, faults, strict=True) if each is not None and fault is None]
    if not fit:
        return Choice(standing=None, reason="; ".join(sorted({fault for fault in faults if fault})))
    best = max(fit, key=lambda each: (each.generation, each.iteration, each.consumed_samples))
    # The state of the lowest rank among equals: all but a faulty one have the same.
    best = _told_of(next(each for each in fit if each.point == best.point), record)
    at_point = [each is not None and each.point == best.point for each in standings]
    sources = tuple(r for r, each in enumerate(standings) if at_point[r] and each and each.content == best.content)
    behind = tuple(rank for rank in range(len(standings)) if rank not in sources)
    differ = tuple(rank for rank in behind if at_point[rank])
    reason = f"{len(sources)} of {len(standings)} workers stand at step {best.iteration}"
    return Choice(standing=best, reason=reason, sources=sources, behind=behind, differ=differ)


def _told_of(standing: Standing, record: CommitRecord | None) -> Standing:
    """With a commit that its generation made and did not live to know of: it lies on the way of a fit standing."""
    if record is None or record.iteration <= standing.durable:
        return standing
    return replace(standing, durable=record.iteration, ancestors=(*standing.ancestors, record.manifest_digest))


def _fault(standing: Standing, record: CommitRecord | None) -> str | None:
    if record is None:
        return None
    if standing.lineage != record.lineage:
        return f"a worker stands in lineage {standing.lineage}, not {record.lineage}"
    if standing.generation < record.generation:
        return f"a worker stands in generation {standing.generation}; others went on in generation {record.generation}"
    if standing.iteration < record.iteration:
        return f"a worker stands at step {standing.iteration}, before the committed {record.iteration}"
    return None
