"""Random schedules: each world formed is the one that a second, naive telling of the rules gives, in the same order."""

from __future__ import annotations

import dataclasses
import random

import pytest

from elastic.events import Cause
from elastic.rendezvous.model import FailureReport, MemberState, Phase, ProbeResult, World
from elastic.rendezvous.verdict import Form, Open, Verdict
from elastic.rendezvous.view import Limits
from elastic.rendezvous.wish import paused, resumed, scaled
from tests.harness.oracle import Oracle
from tests.harness.simulation import Simulation

NODES = [f"node{number}" for number in (1, 2, 9, 10, 11, 20)]
VERBS = ["join", "back", "fail", "lose", "leave", "cut", "heal", "tick", "probe", "rest", "leader", "wipe"]
VERBS += ["join", "round", "round", "round", "cut round", "cut round", "mend", "mend", "rest", "die", "die"]
VERBS += ["pause", "resume", "resume", "scale"]
FEW, MANY = 150, 6000


class Schedule:
    """One job, one seed. `formed` counts the worlds compared, `cuts` those that left somebody out for a cut, `direct`
    those that were formed while their members were at work, `wished` the rounds that a person's wish opened."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        low = self.random.randint(1, 3)
        self.limits = Limits(min_nodes=low, max_nodes=low + self.random.randint(0, 3))
        self.job = Simulation(self.limits)
        self.job.on_verdict = self._compare
        self.oracle = Oracle(min_nodes=low, max_nodes=self.limits.max_nodes)
        self.leader, self.agents, self.formed, self.cuts, self.direct, self.wished = "", 0, 0, 0, 0, 0

    def run(self, events: int = 60) -> None:
        for _event in range(events):
            self._happen(self.random.choice(VERBS))
            self.job.settle()
        self._calm()

    def _compare(self, verdict: Verdict) -> None:
        if isinstance(verdict, Open) and verdict.world.cause in (Cause.PAUSED, Cause.SCALED):
            self.wished += 1
        if not isinstance(verdict, Form):
            return
        old, new = self.job.world, verdict.world
        assert not (self.job.wish.paused and old is not None and old.cause is Cause.PAUSED)
        self.oracle.min_nodes, self.oracle.max_nodes = self._limits()
        members = list(self.job.members.values())
        if old is not None and old.phase is Phase.CLOSED:
            members = [member for member in members if member.seen_closed >= old.generation]
        if old is None or old.phase is Phase.CLOSED:
            self.oracle.begin_anew()
            old = None
        told = {"members": members, "barred": {barred.agent for barred in new.barred}, "now_s": self.job.now_s}
        assert new.direct == (old is not None and old.phase is Phase.FORMED)
        if new.direct:
            assert not self.oracle.must_be_heard(old, members)
        expected = self.oracle.next_world(old, leader=self.leader, **told)
        assert [seat.agent for seat in new.seats] == expected
        assert len(expected) >= self.oracle.min_nodes
        self.oracle.formed(old, new=new, **told)
        self.formed += 1
        self.cuts += bool(new.cut)
        self.direct += new.direct

    def _limits(self) -> tuple[int, int]:
        wish = self.job.wish
        return (wish.min_nodes, wish.max_nodes) if wish.max_nodes else (self.limits.min_nodes, self.limits.max_nodes)

    def _wish(self, verb: str) -> None:
        low = self.random.randint(1, 3)
        wish = self.job.wish
        if verb == "scale":
            wish = scaled(wish, min_nodes=low, max_nodes=low + self.random.randint(0, 3), reason="ann")
        self.job.wish = {"pause": paused, "resume": resumed}[verb](wish, reason="ann") if verb != "scale" else wish

    def _happen(self, verb: str) -> None:
        job, agent = self.job, self.random.choice([*self.job.members, ""])
        if verb == "join" and len(job.members) < len(NODES):
            self.agents += 1
            taken = {member.node for member in job.members.values()}
            node = self.random.choice([node for node in NODES if node not in taken])
            job.join(f"{self.random.randrange(16**4):04x}-{self.agents}", node=node, slots=self.random.randint(1, 3))
        elif verb in ("tick", "rest"):
            job.tick(self.random.choice([0.5, 3.0, 6.0] if verb == "tick" else [12.0, 25.0, 45.0, 130.0]))
        elif verb in ("round", "cut round"):
            self._round(cut=verb == "cut round")
        elif verb == "die" and agent:
            job.lose(agent)
            job.settle()
            self._answer()
        elif verb == "mend":
            for name in job.members:
                job.cut(name)
        elif verb in ("pause", "resume", "scale"):
            self._wish(verb)
        elif verb == "leader":
            self._new_leader(agent)
        elif verb == "wipe" and self.random.random() < 0.1:
            for name in job.members:
                self._end(name, None)
            job.wipe()
            self._new_leader("")
        elif agent:
            self._happen_to(verb, agent)

    def _round(self, *, cut: bool) -> None:
        """All come together anew, perhaps since one of them does not reach another."""
        names = list(self.job.members)
        if cut and len(names) > 1:
            one, other = self.random.sample(names, k=2)
            before = [cut.agent for cut in self.job.world.cut] if self.job.world else []
            if known := [name for name in before if name in names and name != other]:
                one = self.random.choice(known)
            self.job.cut(one, other)
            if self.random.random() < 0.7:
                self.job.settle()
        for name in list(self.job.members):
            if self.job.members[name].state is MemberState.JOINING:
                self._end(name, None)

    def _happen_to(self, verb: str, agent: str) -> None:
        job = self.job
        joining = job.members[agent].state is MemberState.JOINING
        others = [name for name in job.members if name != agent]
        if verb == "lose":
            job.lose(agent)
        elif verb == "cut":
            job.cut(agent, *self.random.sample(others, k=min(len(others), self.random.randint(1, 3))))
        elif verb == "heal":
            job.cut(agent)
        elif verb == "probe":
            job.probe(agent, self.random.choice(list(ProbeResult)))
        elif verb == "leave" and joining and self.random.random() < 0.3:
            job.leave(agent)
        elif verb in ("back", "fail") and joining:
            cause = self.random.choice([Cause.PEER_LOST, Cause.WORKER_EXIT, Cause.GROUP_FAILED])
            report = FailureReport(
                cause=cause, rank=0, step=int(job.now_s), signature=f"E{self.agents % 3}", committed_steps=1
            )
            self._end(agent, report if verb == "fail" else None)

    def _end(self, agent: str, report: FailureReport | None) -> None:
        if any(world.seat_of(agent) for world in self.job.worlds):
            self.job.back(agent, report=report)

    def _new_leader(self, leader: str) -> None:
        self.leader = leader
        self.job.change_leader(leader)
        self.oracle.new_leader(self.job.now_s)

    def _answer(self) -> None:
        for agent in list(self.job.asked):
            self.job.probe(agent, ProbeResult.ALIVE if agent in self.job.members else ProbeResult.REFUSED)

    def _calm(self) -> None:
        """Nothing goes wrong any more, all cuts are mended: every agent that wants a place gets one, up to the most."""
        job = self.job
        self._wish("resume")
        for agent in [name for name, member in job.members.items() if member.state is not MemberState.JOINING]:
            job.lose(agent)
        for _round in range(6):
            for _answer in range(3):
                for agent in list(job.members):
                    job.cut(agent)
                    world = job.world
                    if world is None or world.phase is not Phase.FORMED or world.seat_of(agent) is None:
                        self._end(agent, None)
                job.settle()
                self._answer()
                job.settle()
            job.tick(130.0)
            job.settle()
        self._check_all_placed(job.world)

    def _check_all_placed(self, world: World | None) -> None:
        closed = world is not None and world.phase is Phase.CLOSED
        barred = {entry.agent for entry in world.barred} if world else set()
        waiting = {name for name in self.job.members if name not in barred}
        if closed or len(waiting) < self._limits()[0]:
            return
        assert world is not None
        assert world.phase is Phase.FORMED, world.reason
        placed = {seat.agent for seat in world.seats}
        assert placed <= waiting
        assert len(placed) == min(len(waiting), self._limits()[1]), dataclasses.replace(world, failures=())


def compare(seeds: range) -> None:
    formed = cuts = direct = wished = 0
    for seed in seeds:
        schedule = Schedule(seed)
        try:
            schedule.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        wished += schedule.wished
        formed, cuts, direct = formed + schedule.formed, cuts + schedule.cuts, direct + schedule.direct
    assert formed > 2 * len(seeds)
    assert cuts > len(seeds) / 10
    assert direct > len(seeds) / 10, direct
    assert wished > len(seeds) / 10, wished


def test_some_schedules():
    compare(range(FEW))


@pytest.mark.exhaustive
def test_thousands_of_schedules():
    compare(range(FEW, FEW + MANY))
