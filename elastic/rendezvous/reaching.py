"""Reaching: an agent that waits without a seat, since it could not reach others, tries again whether it can."""

from __future__ import annotations

from collections.abc import Callable, Collection

from elastic.clock import Clock
from elastic.rendezvous.model import Member, Phase, ProbeResult, World
from elastic.rendezvous.probe import Target, probe_all

AGAIN_S = 2.0
_MOST = 32


class Reaching:
    """Used from the waiting thread. `report` says anew who is out of reach."""

    def __init__(
        self, *, member: Callable[[], Member], report: Callable[[Collection[str]], None], clock: Clock
    ) -> None:
        self._member, self._report, self._clock = member, report, clock
        self._round: tuple[int, Phase] | None = None
        self._next_s = 0.0

    def try_again(self, world: World) -> None:
        """Ask those of this world that this agent named: whether it is at work without us, or cannot be formed since
        too few reach each other. At most once in AGAIN_S, for the first time so long after the world changed."""
        now_s = self._clock.monotonic_s()
        if (world.generation, world.phase) != self._round:
            self._round, self._next_s = (world.generation, world.phase), now_s + AGAIN_S
        named = set(self._member().unreachable)
        if not named or world.phase is Phase.CLOSED or now_s < self._next_s:
            return
        seats = [seat for seat in world.seats if seat.agent in named][:_MOST]
        results = probe_all({seat.agent: Target(address=seat.address, port=seat.probe_port) for seat in seats})
        self._next_s = self._clock.monotonic_s() + AGAIN_S
        reached = {agent for agent, result in results.items() if result is ProbeResult.ALIVE}
        if reached:
            self._report(named - reached)
