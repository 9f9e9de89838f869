"""Outage: tells once that something broke, and once that it is back and how long that took."""

from __future__ import annotations

import logging

from elastic.clock import Clock


class Outage:
    """For one thread. `what` begins the sentences."""

    def __init__(self, what: str, *, log: logging.Logger, clock: Clock) -> None:
        self._what, self._log, self._clock = what, log, clock
        self._since_s: float | None = None

    def broke(self, reason: str) -> None:
        """It does not work, for this reason; told the first time only."""
        if self._since_s is None:
            self._since_s = self._clock.monotonic_s()
            self._log.info("%s broke (%s); it mends itself", self._what, reason)

    def mended(self) -> None:
        """It works."""
        if self._since_s is not None:
            lasted_s = self._clock.monotonic_s() - self._since_s
            self._since_s = None
            self._log.info("%s goes on after %.1f s", self._what, lasted_s)
