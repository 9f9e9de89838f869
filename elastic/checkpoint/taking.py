"""Taking: what one rank contributes to a save, or to a copy in memory."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from elastic.checkpoint.handover import pack
from elastic.checkpoint.image import Image
from elastic.checkpoint.places import Places
from elastic.checkpoint.rng import capture_rng
from elastic.checkpoint.saving_apart import exchange, place_shards
from elastic.checkpoint.seams import Group
from elastic.checkpoint.shards import Shard, own_shards
from elastic.checkpoint.state import Captured


@dataclass(frozen=True, kw_only=True)
class Taker:
    """`places`: the directories that save_path is, where nodes do not share one; each keeps all there is.

    Of a state that no node has whole, each writes its parts, and the save brings them together.
    """

    group: Group
    places: Places | None
    prefix: str
    weights_only: bool

    def own(self) -> dict[str, Tensor]:
        """What only this rank has: its random states."""
        return {} if self.weights_only else capture_rng(self.group.rank)

    def own_to_save(self, *, dealt_out: bool) -> dict[str, Tensor]:
        """The same, of all ranks where each node keeps everything. Every rank calls it. Raises PeerLost.

        `dealt_out`: whether no rank has the whole state, so that each writes files of its own in any case.
        """
        own = self.own()
        return own if self.places is None or dealt_out else exchange(own, group=self.group)

    def whole(self, captured: Captured) -> list[Image]:
        """All of a replicated state but what only this rank has, to be given to another rank."""
        shards = own_shards(model=captured.model, opt=captured.opt, own={}, rank=0, world_size=1, prefix=self.prefix)
        return [pack(shard) for shard in shards]

    def to_keep(self, captured: Captured) -> list[Shard]:
        """The files that this rank would write where all nodes share a directory; for a copy in memory."""
        return self._shared(captured, self.own())

    def to_save(self, captured: Captured, own: dict[str, Tensor]) -> list[Shard]:
        """The files that this rank writes. `own`: what `own_to_save` gave."""
        if self.places is not None and not captured.cuts:
            return place_shards(captured.model, captured.opt | own, places=self.places, prefix=self.prefix)
        return self._shared(captured, self.own())

    def _shared(self, captured: Captured, own: dict[str, Tensor]) -> list[Shard]:
        return own_shards(
            model=captured.model,
            opt=captured.opt,
            own=own,
            cuts=captured.cuts,
            rank=self.group.rank,
            world_size=self.group.size,
            prefix=self.prefix,
        )
