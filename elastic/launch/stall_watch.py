"""Stall watch: an agent's eyes on a world that stands still. Asks, reports, and says when its workers must go."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from elastic.clock import Clock
from elastic.launch import stall
from elastic.launch.hang_watch import HangWatch
from elastic.launch.stall import Ask, GiveUp, Pace, Situation
from elastic.rendezvous.coordinator import Coordinator
from elastic.rendezvous.membership import Membership
from elastic.rendezvous.model import ProbeResult
from elastic.rendezvous.probe import Target, probe_all

logger = logging.getLogger(__name__)

Prober = Callable[[Mapping[str, Target], float], Mapping[str, ProbeResult]]


def _probe(places: Mapping[str, Target], silence_s: float) -> Mapping[str, ProbeResult]:
    return probe_all(places, timeout_s=silence_s)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a look brought. `stopped`: own workers that somebody stopped. `give_up`: why all of them must go."""

    until_s: float
    """When to look again, unless something happens before."""
    stopped: tuple[int, ...] = ()
    hung: Mapping[int, str] = field(default_factory=dict)
    """Own workers that hang, each with why."""
    give_up: str = ""


class StallWatch:
    """One for each agent; used from its main thread. `look` takes as long as silent peers are given to answer."""

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        pace: Callable[[], Pace],
        unconfirmed_limit_s: float,
        clock: Clock,
        probe: Prober = _probe,
    ) -> None:
        self._coordinator, self._pace, self._clock, self._probe = coordinator, pace, clock, probe
        self._limit_s = unconfirmed_limit_s
        self._targets: Mapping[str, Target] = {}
        self._asked_s: float | None = None
        self._silent: frozenset[str] | None = None
        self._told: frozenset[str] = frozenset()
        self.hangs: HangWatch | None = None
        """Looks at the own workers, once there are places for them."""

    @property
    def blames(self) -> bool:
        """Whether this agent has found peers silent, so that its workers wait for them in vain."""
        return bool(self._told)

    def begin(self, membership: Membership) -> None:
        """A generation starts here."""
        self._targets = stall.targets(membership.world, agent=membership.seat.agent)
        self._forget()
        self._told = frozenset()

    def look(self, pids: Sequence[int]) -> Finding:
        """Look at the world and the own workers, and do what there is to do. `pids`: those that run."""
        found = self._look(pids)
        if self.hangs is None or found.stopped or found.give_up:
            return found
        hung, until_s = self.hangs.look(pids)
        return replace(found, hung=hung, until_s=min(found.until_s, until_s))

    def _look(self, pids: Sequence[int]) -> Finding:
        pace, now_s = self._pace(), self._clock.monotonic_s()
        if self._asked_s is not None and pace.advanced_s > self._asked_s:
            self._forget()
            self._tell(frozenset())
        valid_until_s = self._coordinator.lease_valid_until_s
        found = Situation(
            now_s=now_s,
            pace=pace,
            peers=len(self._targets),
            asked_s=self._asked_s,
            silent=self._silent,
            unconfirmed_since_s=valid_until_s if now_s > valid_until_s else None,
            unconfirmed_limit_s=self._limit_s,
        )
        verdict = stall.decide(found)
        if isinstance(verdict, GiveUp):
            return Finding(until_s=now_s, give_up=verdict.reason)
        if isinstance(verdict, Ask):
            return self._ask(verdict, pids)
        until_s = verdict.until_s
        if found.unconfirmed_since_s is None:
            # The lease may become uncertain meanwhile, and nobody wakes us for that.
            until_s = min(until_s, max(now_s, valid_until_s + self._limit_s))
        return Finding(until_s=until_s)

    def _ask(self, ask: Ask, pids: Sequence[int]) -> Finding:
        self._asked_s, step = self._clock.monotonic_s(), self._pace().step
        if held := stall.stopped(pids):
            return Finding(until_s=self._asked_s, stopped=held)
        results = self._probe(self._targets, ask.silence_s)
        if self._pace().step > step:
            # Done with all of them: who was late with its answer is only busy.
            return Finding(until_s=self._clock.monotonic_s())
        silent = stall.silent(results)
        if silent and silent != self._silent:
            logger.warning("%s, and %d of %d agents asked are silent", ask.reason, len(silent), len(self._targets))
        self._silent = silent
        self._tell(silent)
        return Finding(until_s=self._clock.monotonic_s())

    def _forget(self) -> None:
        self._asked_s = self._silent = None

    def _tell(self, silent: frozenset[str]) -> None:
        if silent != self._told:
            self._told = silent
            self._coordinator.report_unreachable(silent)
