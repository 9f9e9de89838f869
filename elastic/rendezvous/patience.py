"""Patience: when an agent that waits for a generation suspects the leader. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_LONGEST_PAUSE_S = 5.0
# A leader of very many needs a while until it has heard of all of them.
_FEW, _EACH_MORE_S = 64, 0.002


@dataclass(frozen=True, kw_only=True)
class Patience:
    """`due_s` is when to suspect next, on the clock of the one who waits; pauses grow."""

    due_s: float
    pause_s: float

    @classmethod
    def at(cls, now_s: float, *, pause_s: float, nodes: int, at_once: bool) -> Patience:
        """`at_once`: something is wrong already, as when workers have lost a peer."""
        more_s = _EACH_MORE_S * max(0, nodes - _FEW)
        return cls(due_s=now_s + more_s + (0.0 if at_once else pause_s), pause_s=pause_s + more_s)

    def is_due(self, now_s: float) -> bool:
        """Whether to suspect now."""
        return now_s >= self.due_s

    def after(self, now_s: float) -> Patience:
        """What is left after having asked."""
        longest_s = max(_LONGEST_PAUSE_S, self.pause_s)
        return Patience(due_s=now_s + self.pause_s, pause_s=min(2 * self.pause_s, longest_s))
