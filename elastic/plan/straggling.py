"""Straggling: whether a rank computes slower than the others, from the times that all tell of each step. Pure.

A time is that of one micro-batch, without what was waited for: so ranks with unequally many can be compared, and one
that waits for a slow one does not look slow itself. One step says nothing, many in a row do.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

SLOW = 1.5
"""Times the median of the others from which on a step is a slow one."""
WELL = 1.25
"""The same up to which it is none any more. In between it stays what it was."""
STEPS = 20
"""So many steps of a kind in a row are a verdict."""


@dataclass(frozen=True, kw_only=True)
class Straggling:
    """What is known of one rank. `in_a_row`: steps that spoke against `slow`."""

    slow: bool = False
    in_a_row: int = 0
    own_s: float = 0.0
    others_s: float = 0.0
    """Times of the last step, the others' median."""

    def after(self, paces_s: Sequence[float], *, rank: int) -> Straggling:
        """After one more step. `paces_s`: times by rank; 0 where one is not known."""
        own_s, others = paces_s[rank], [each for at, each in enumerate(paces_s) if at != rank and each > 0]
        if not others or not own_s > 0:
            return self
        others_s = statistics.median(others)
        against = own_s < WELL * others_s if self.slow else own_s > SLOW * others_s
        in_a_row = self.in_a_row + 1 if against else 0
        turns = in_a_row >= STEPS
        return Straggling(slow=self.slow != turns, in_a_row=0 if turns else in_a_row, own_s=own_s, others_s=others_s)
