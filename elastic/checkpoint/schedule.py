"""Schedule: when the next save is due, from what was committed and what failed."""

from __future__ import annotations

from elastic.checkpoint.policy import SaveVerdict, save_due
from elastic.checkpoint.seams import Settings


class Schedule:
    """The same on all ranks, which tell it the same."""

    def __init__(self, settings: Settings) -> None:
        self.committed: int | None = None
        """The last committed iteration; None: none is known."""
        self.began_at = 0
        """The iteration that training began with: of another run, where one was loaded."""
        self._enable_save = settings.enable_save
        self._every_steps, self._by_distance = settings.save_interleaved_steps, False
        self._failed_at: int | None = None
        self._failures = 0

    def pace(self, *, every_steps: int) -> None:
        """From here on a save is due this many steps after the last one, whatever was set."""
        self._every_steps, self._by_distance = every_steps, True

    def saved(self, iteration: int) -> None:
        """It was committed."""
        self._failed_at, self._failures, self.committed = None, 0, iteration

    def failed(self, iteration: int) -> None:
        """It was not."""
        self._failed_at, self._failures = iteration, self._failures + 1

    def behind(self, iteration: int) -> bool:
        """Whether a save is missing between what is durable and this iteration."""
        every, durable = self._every_steps, self.committed or 0
        return self._enable_save and iteration // every > durable // every

    def verdict(self, iteration: int, *, counted: range | None, under_way: int | None) -> SaveVerdict:
        """Whether the step just taken is to be followed by a save. `under_way`: the iteration that is being saved."""
        last = self.began_at if self.committed is None and self._by_distance else self.committed
        return save_due(
            iteration,
            enable_save=self._enable_save,
            every_steps=self._every_steps,
            last_saved=last if under_way is None or not self._by_distance else under_way,
            failed_at=self._failed_at if under_way is None else None,  # the one under way is the next try
            failures=self._failures,
            counted=counted,
            by_distance=self._by_distance,
        )
