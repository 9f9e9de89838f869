"""Likeness: what must be equal on all workers for their sums to have the same bits, and who is to go where it is not.

Pure. What a matrix product adds up in which order depends on the build of torch, the instructions of the processor and
the number of threads; what a micro-batch is, on the settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from elastic.errors import ElasticError


@dataclass(frozen=True, kw_only=True)
class Likeness:
    """One worker's. Two that are equal compute alike; the words are for people."""

    torch: str
    build: str
    """Digest of how torch was compiled and what it was linked to."""
    instructions: str
    """The vector instructions that torch uses here, and a digest of those that the processor has."""
    device: str
    threads: int
    precision: str
    """Of float32 matrix products, and what the environment tells the math libraries."""
    global_batch_size: int
    micro_batch_size: int
    seed: int

    def to_plain(self) -> dict[str, Any]:
        """JSON types."""
        return dict(vars(self))

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Likeness:
        """What `to_plain` made.

        Raises:
            ElasticError: it is none; another version made it.
        """
        try:
            return cls(**{each.name: plain[each.name] for each in fields(cls)})
        except KeyError as error:
            raise ElasticError(f"a worker told its likeness without {error}; versions differ") from error


SAVED_AS = "likeness"
"""Its section beside the settings that a checkpoint holds."""


def recorded_in(saved_settings: Mapping[str, Any]) -> Likeness | None:
    """What the workers were like that saved a checkpoint with these settings; None where it is not told."""
    plain = saved_settings.get(SAVED_AS)
    try:
        return Likeness.from_plain(plain) if isinstance(plain, Mapping) else None
    except ElasticError:
        return None  # of another version: nobody here can be like it


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A worker that computes differently from the run."""

    rank: int
    reason: str


def refuse(every: Sequence[Likeness], *, recorded: Likeness | None) -> tuple[Refusal, ...]:
    """Who does not compute as the run does.

    The run is like what its last save says, if anybody here still is; else like most, of equally many the lowest rank.
    So a newcomer never turns out those who were there, and a run that moved as a whole goes on.

    Args:
        every: by rank.
    """
    if recorded in every:
        model, whose = recorded, "the run"
    else:
        model, whose = Counter(every).most_common(1)[0][0], f"worker {_first_of_most(every)}"
    return tuple(
        Refusal(rank=rank, reason=difference(own, model, whose=whose)) for rank, own in enumerate(every) if own != model
    )


def _first_of_most(every: Sequence[Likeness]) -> int:
    return every.index(Counter(every).most_common(1)[0][0])


def difference(own: Likeness, model: Likeness | None, *, whose: str) -> str:
    """In what one computes differently from another, for people."""
    parts = [
        f"{each.name.replace('_', ' ')} is {getattr(own, each.name)}, that of {whose} {getattr(model, each.name)}"
        for each in fields(Likeness)
        if getattr(own, each.name) != getattr(model, each.name)
    ]
    return "; ".join(parts)
