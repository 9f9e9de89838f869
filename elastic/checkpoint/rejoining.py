"""Rejoining: the ranks of a new generation go on from the state that some of them have kept, without any disk.

Every rank says what it has (`Standing`), rank 0 chooses, and claims the commit record for the generation: from then on
no older one's save counts. Who lacks the state gets it from the node's memory, where a copy of just that step lies, or
directly from a rank that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from elastic import events
from elastic.checkpoint.arena import Held
from elastic.checkpoint.arrivals import MEMORY, PEER, Arrivals
from elastic.checkpoint.handover import content, give, routes, take
from elastic.checkpoint.image import Image
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.recalling import kept_of, viewed_in
from elastic.checkpoint.restored import Restored, restored_from
from elastic.checkpoint.seams import Committer, Group
from elastic.checkpoint.standing import Choice, Standing, choose, standing_from
from elastic.checkpoint.state import Captured, buffer_names, overwritable, prepare
from elastic.errors import CheckpointError, Fenced, StoreError


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What this rank has kept. `durable`: the last committed iteration that it goes on from."""

    manifest: Manifest
    durable: int
    captured: Captured

    def standing(self, *, without: frozenset[str]) -> Standing:
        """Where it stands; `without`: names that may differ by rank."""
        return Standing(
            lineage=self.manifest.lineage,
            generation=self.manifest.generation,
            iteration=self.manifest.iteration,
            consumed_samples=self.manifest.consumed_samples,
            run_digest=self.manifest.run_digest,
            content=content(self.captured, without=without),
            durable=self.durable,
            ancestors=self.manifest.ancestors,
        )


@dataclass(frozen=True, kw_only=True)
class Rejoined:
    """How all ranks came to one state. `standing`: it, with what was committed before it."""

    restored: Restored
    standing: Standing


class Rejoining:
    """One meeting. Every rank makes one and calls `meet`."""

    def __init__(
        self, group: Group, *, generation: int, committer: Committer, arrivals: Arrivals, emit: events.Emit
    ) -> None:
        self._group, self._generation, self._committer, self._emit = group, generation, committer, emit
        self._arrivals = arrivals
        self.intact = True
        """Whether what is tracked is what it was; not once another state is being put in its place."""

    def meet(
        self,
        kept: Kept | None,
        tracked: Mapping[str, Any],
        *,
        held: Sequence[Held],
        images: Callable[[], Sequence[Image]],
    ) -> Rejoined | None:
        """Bring all ranks to the newest state that one of them has kept; None where no state may be gone on from.

        Args:
            held: whole copies in this node's memory. images: called where this rank is to give its state away.

        Raises:
            Fenced: a newer generation exists.
            PeerLost: from the group.
        """
        own = None if kept is None else asdict(kept.standing(without=buffer_names(tracked)))
        offered = self._group.gather(own)
        told = self._group.broadcast(None if offered is None else self._decide(offered))
        if "fenced" in told:
            raise Fenced(f"the state that workers kept was not gone on from: {told['fenced']}")
        choice = Choice.from_plain(told)
        if choice.standing is None:
            self._tell(choice)
            return None
        found = self._settle(choice, choice.standing, kept, tracked, held, images)
        fault = self._vote(found if isinstance(found, str) else "")
        self._tell(choice, fault)
        if fault or isinstance(found, str):
            return None
        return Rejoined(restored=found, standing=replace(choice.standing, generation=self._generation))

    def _decide(self, offered: list[dict[str, Any] | None]) -> dict[str, Any]:
        """On rank 0."""
        try:
            record = self._committer.record()
        except StoreError as error:
            # Nothing is known of what others did. The disk is asked in the same way, and says so.
            return Choice(standing=None, reason=str(error)).to_plain()
        choice = choose([standing_from(each) for each in offered], record=record)
        if choice.standing is not None and record is not None and record.generation < self._generation:
            answer = self._committer.commit(replace(record, generation=self._generation))
            if answer.stale:
                return {"fenced": answer.reason}
        return choice.to_plain()

    def _settle(
        self, choice: Choice, standing: Standing, kept: Kept | None, tracked: Mapping[str, Any],
        held: Sequence[Held], images: Callable[[], Sequence[Image]],
    ) -> Restored | str:  # fmt: skip
        """This rank's part: keep, give, take. Why it failed, where it did; nothing of the tracked was changed then."""
        rank = self._group.rank
        copy = None if rank in choice.sources else next((each for each in held if _is_at(each, standing)), None)
        own_copies = self._group.gather(copy is not None)
        behind = self._group.broadcast(None if own_copies is None else [r for r in choice.behind if not own_copies[r]])
        if rank not in choice.behind:
            assert kept is not None  # it is a source
            for _, receiver in (each for each in routes(sources=choice.sources, behind=behind) if each[0] == rank):
                give(kept.manifest, images(), line=self._group, to=receiver)
            return restored_from(kept.manifest, tier="process", reason=choice.reason, own=True)
        try:
            if copy is not None:
                manifest, tier, files = copy.manifest, MEMORY, dict(copy.images)
            else:
                source = next(
                    giver for giver, receiver in routes(sources=choice.sources, behind=behind) if receiver == rank
                )
                manifest, files = take(line=self._group, source=source, arrivals=self._arrivals)
                tier = PEER
            viewed = viewed_in(manifest, files)
            prepare(viewed, tracked)
            self.intact = False
            # What lies in the node's memory will be written again; what came from a peer is nobody else's.
            count = self._arrivals.begin(MEMORY)
            captured = kept_of(viewed, live=overwritable(tracked)) if copy is not None else viewed
            prepare(captured, tracked)()
            if copy is not None:
                count(copy.size_bytes)
            return restored_from(manifest, tier=tier, reason=choice.reason, own=True)
        except (CheckpointError, OSError, MemoryError) as error:
            return str(error)

    def _vote(self, fault: str) -> str:
        faults = self._group.gather(fault)
        found: str = self._group.broadcast(None if faults is None else next((each for each in faults if each), ""))
        return found

    def _tell(self, choice: Choice, fault: str = "") -> None:
        if self._group.rank != 0:
            return
        if choice.differ:
            where = ", ".join(map(str, choice.differ))
            self._emit(
                events.ReplicasDiffered(ranks=choice.differ, reason=f"{choice.reason}; ranks {where} had other bits")
            )
        if fault or choice.standing is None:
            self._emit(events.Notice(text=f"not from the workers' own state: {fault or choice.reason}"))


def _is_at(held: Held, standing: Standing) -> bool:
    manifest = held.manifest
    point = (manifest.lineage, manifest.iteration, manifest.consumed_samples, manifest.run_digest)
    return held.whole and manifest.generation == standing.generation and point == standing.point
