"""Waiting: how an agent comes to its seat in a generation, once its workers have ended the last one."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable

from elastic.clock import Clock
from elastic.errors import Preempted, StoreUnavailable
from elastic.events import Cause
from elastic.rendezvous import alike, launched, versions
from elastic.rendezvous.election import Election
from elastic.rendezvous.ending import ending_of, missed_generation, unheard_generation
from elastic.rendezvous.errors import JobClosed
from elastic.rendezvous.membership import too_few_came
from elastic.rendezvous.model import Member, Phase, Seat, World
from elastic.rendezvous.options import RendezvousOptions
from elastic.rendezvous.patience import Patience
from elastic.rendezvous.reaching import Reaching
from elastic.rendezvous.registration import Registration
from elastic.rendezvous.wish import Wish
from elastic.rendezvous.world_watch import WorldWatch

_log = logging.getLogger(__name__)
_POLL_S = 0.1


class Waiting:
    """Used from the agent's own thread. `check` raises where it must go; `members` and `wish` ask the store."""

    def __init__(
        self,
        *,
        options: RendezvousOptions,
        registration: Registration,
        watch: WorldWatch,
        election: Election,
        reaching: Reaching,
        members: Callable[[], tuple[Member, ...]],
        wish: Callable[[], Wish],
        check: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._options, self._clock = options, clock
        self._registration, self._watch, self._election = registration, watch, election
        self._reaching, self._members, self._wish, self._check = reaching, members, wish, check
        self._told_of_rest = False
        self.rested_until_s = 0.0
        """When the job was last seen to be paused: that time was not spent on agreeing."""
        self.seen_closed = 0
        """The generation that was over when this agent started; 0: none."""

    @property
    def nodes(self) -> int:
        """How many nodes there are, as far as this agent knows."""
        world = self._watch.world
        return max(self._options.min_nodes, world.nodes if world else 0)

    def seat(self, *, after: int, limit_s: float, interrupted: Callable[[], bool], at_once: bool) -> World:
        """The world that this agent has a seat in, newer than `after`. Raises JobClosed, Fenced, Preempted, StoreError,
        NumericsDiffer, VersionsDiffer, RunMismatch.

        `at_once`: something is wrong already, so that the leader is not trusted for long."""
        now_s = self._clock.monotonic_s()
        deadline_s, nodes = now_s + limit_s, self.nodes
        patience = Patience.at(now_s, pause_s=self._options.suspect_s, nodes=nodes, at_once=at_once)
        while True:
            self._watch.wait(lambda: self._settled(after), timeout_s=0.0 if patience.is_due(now_s) else _POLL_S)
            if (world := self.seated(after=after)) is not None:
                return world
            now_s = self._clock.monotonic_s()
            if interrupted():
                raise Preempted("asked to leave while waiting for a generation")
            if (newest := self._watch.world) is not None:
                versions.check(self._registration.member, world=newest, members=self._members)
                launched.check(self._registration.member, world=newest, members=self._members)
                alike.check(self._registration.member, world=newest, members=self._members)
                self._reaching.try_again(newest)
                deadline_s = now_s + limit_s if newest.phase is Phase.FORMED or self._rests(newest) else deadline_s
            if now_s >= deadline_s:
                trouble, least = self._registration.trouble, self._options.min_nodes
                raise trouble or too_few_came(self._members, wish=self._wish, least=least, limit_s=limit_s)
            if patience.is_due(now_s):
                self._election.suspect(among=nodes)
                patience = patience.after(now_s)

    def _rests(self, world: World) -> bool:
        """Whether the job is paused: for as long as its owner likes."""
        rests = world.phase is Phase.OPEN and world.cause is Cause.PAUSED
        self.rested_until_s = self._clock.monotonic_s() if rests else self.rested_until_s
        if rests and not self._told_of_rest:
            _log.info("this job is paused: %s; `elastic resume` lets it go on", world.reason)
        self._told_of_rest = rests
        return rests

    def seated(self, *, after: int) -> World | None:
        """The world that this agent waits for, if it is there. What it was given and does not take, it ends: others
        wait for it.

        Raises JobClosed, Fenced, StoreError."""
        self._check()
        self._watch.check()
        self._look()
        if (closed := self.closed()) is not None:
            raise closed
        world = self._watch.world
        member = self._registration.member
        if unheard := self._unheard(after=after):
            self._registration.publish(ended_generation=unheard)
            return None
        if self._seat_of(world, after=after) is not None:
            return world
        if self._watch.looks_apart:
            return None
        if missed := missed_generation(world, agent=member.agent, ended=member.ended_generation, entered=after):
            self._registration.publish(ended_generation=missed)
        return None

    def goes_on(self, *, after: int) -> bool:
        """Whether a seat of a newer generation is there already, so that nothing need be said to get one."""
        self._look()
        return self._seat_of(self._watch.world, after=after) is not None and not self._unheard(after=after)

    def end_of_job(self, *, timeout_s: float | None) -> JobClosed | None:
        """How the job ended, for an agent that is done; None: nothing was heard of it in time."""
        until_s = math.inf if timeout_s is None else self._clock.monotonic_s() + timeout_s
        while True:
            left_s = max(0.0, until_s - self._clock.monotonic_s())
            pause_s = min(left_s, _POLL_S) if self._watch.looks_apart else left_s
            self._watch.wait(self._has_news, timeout_s=None if math.isinf(pause_s) else pause_s)
            self._look()
            if given := self._unheard():
                self._registration.publish(ended_generation=given, last_generation=given)
            elif (closed := self.closed()) is not None or self._clock.monotonic_s() >= until_s:
                return closed

    def closed(self) -> JobClosed | None:
        """How the job ended for this agent; None: it goes on."""
        return ending_of(self._watch.world, agent=self._registration.member.agent, seen_closed=self.seen_closed)

    def _has_news(self) -> bool:
        return self.closed() is not None or bool(self._unheard())

    def _unheard(self, *, after: int = 0) -> int:
        world = self._watch.world
        if world is None or world.generation <= after:
            return 0
        since = self._registration.since_revision > self._watch.revision
        return unheard_generation(world, member=self._registration.member, written_since=since)

    def _look(self) -> None:
        with contextlib.suppress(StoreUnavailable):
            self._watch.look()

    def _settled(self, after: int) -> bool:
        seated = self._seat_of(self._watch.world, after=after) is not None
        return seated or self._watch.looks_apart or self.closed() is not None

    def _seat_of(self, world: World | None, *, after: int) -> Seat | None:
        """This agent's seat in a world that it may enter: newer than all that it has entered or ended."""
        member = self._registration.member
        if world is None or world.phase is not Phase.FORMED or world.generation <= max(after, member.ended_generation):
            return None
        return world.seat_of(member.agent)
