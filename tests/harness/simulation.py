"""A job's members and its leader in one thread: keys are a dict, time is a number, verdicts are done at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from elastic.errors import Lack
from elastic.events import Cause
from elastic.rendezvous.machine import decide
from elastic.rendezvous.model import FailureReport, Member, MemberState, Phase, ProbeResult, World
from elastic.rendezvous.verdict import Close, Evict, Form, Open, Probe, Verdict, Wait
from elastic.rendezvous.view import LeaderView, Limits, observe, with_probes
from elastic.rendezvous.wish import NO_WISH, Wish, under

# A verdict that is done at once is followed by another; more than this in a row is a loop.
_MOST_VERDICTS = 12


class Simulation:
    """Feed it what happens; `settle` returns the verdicts up to the one that waits for something."""

    def __init__(self, limits: Limits) -> None:
        self.now_s = 0.0
        self.limits = limits
        self.world: World | None = None
        self.members: dict[str, Member] = {}
        self.worlds: list[World] = []
        self.wish: Wish = NO_WISH
        self.asked: tuple[str, ...] = ()
        self._seated: set[str] = set()
        self.on_verdict: Callable[[Verdict], None] = lambda _verdict: None
        self._view = LeaderView(limits=limits)

    @property
    def generation(self) -> int:
        return self.world.generation if self.world else 0

    def join(self, agent: str, *, node: str = "", slots: int = 1, root: int = 0, ended: int = 0) -> None:
        closed = self.generation if self.world and self.world.phase is Phase.CLOSED else 0
        before = self.members.get(agent)
        self.members[agent] = Member(
            agent=agent,
            node=node or agent,
            address="127.0.0.1",
            slots=slots,
            probe_port=1,
            store_port=1000 + len(self.members),
            lease=1,
            ended_generation=ended,
            last_generation=ended,
            root_generation=root,
            seen_closed=before.seen_closed if before else closed,
        )

    def come(self, agent: str) -> None:
        """It is here and gets ready; `join` is when it asks."""
        self.join(agent)
        self.members[agent] = dataclasses.replace(self.members[agent], state=MemberState.IDLE)

    def back(self, agent: str, *, report: FailureReport | None = None) -> None:
        """The agent has ended the last generation that it was a member of."""
        last = max((w.generation for w in self.worlds if w.seat_of(agent)), default=self.generation)
        self._change(agent, state=MemberState.JOINING, ended_generation=last, last_generation=last, report=report)

    def lose(self, agent: str) -> None:
        self.members.pop(agent, None)

    def leave(self, agent: str) -> None:
        self._change(agent, state=MemberState.LEAVING)

    def done(self, agent: str) -> None:
        self._change(agent, state=MemberState.DONE, ended_generation=self.generation, last_generation=self.generation)

    def tick(self, seconds: float) -> None:
        self.now_s += seconds

    def probe(self, agent: str, result: ProbeResult) -> None:
        self._view = with_probes(self._view, results={agent: result}, now_s=self.now_s)
        self.asked = tuple(name for name in self.asked if name != agent)

    def cut(self, agent: str, *others: str) -> None:
        """The agent says that it cannot reach the others, none: it reaches all again."""
        last = max((w.generation for w in self.worlds if w.seat_of(agent)), default=0)
        self._change(agent, unreachable=others, unreachable_in=last)

    def change_leader(self, leader: str = "") -> None:
        self._view = LeaderView(limits=self.limits, leader=leader)
        self.asked = ()

    def wipe(self) -> None:
        """The store lost everything; members write their keys again, as finished with what they had."""
        self.world, self.wish = None, NO_WISH
        self.change_leader()

    def settle(self) -> list[Verdict]:
        """Decide and do until nothing is left to do but wait or probe."""
        verdicts: list[Verdict] = []
        while len(verdicts) < _MOST_VERDICTS:
            self._view = under(self._view, limits=self.limits, wish=self.wish)
            self._view = observe(self._view, world=self.world, members=self.members, now_s=self.now_s)
            verdict = decide(self._view, now_s=self.now_s)
            if isinstance(verdict, Probe) and verdict.agents == self.asked:
                return verdicts
            verdicts.append(verdict)
            self.on_verdict(verdict)
            match verdict:
                case Open(world=world) | Form(world=world) | Close(world=world):
                    self.world = world
                    self.worlds.append(world)
                    if isinstance(verdict, Close):
                        self.wish = NO_WISH
                    if isinstance(verdict, Form):
                        self._seat(world)
                case Evict(agents=agents):
                    for agent in agents:
                        self.lose(agent)
                case Probe(agents=agents):
                    self.asked = agents
                    return verdicts
                case Wait():
                    return verdicts
        raise AssertionError(f"the leader does not come to rest: {verdicts[-4:]}")

    def _seat(self, world: World) -> None:
        """Taking a seat takes back what an agent said before; its key says so when it is next written. Who hosts the
        workers' store writes at once where the next one is."""
        self._seated |= {seat.agent for seat in world.seats}
        self._change(world.seats[0].agent, last_generation=world.generation)

    def _change(self, agent: str, **fields: object) -> None:
        if agent in self._seated:
            self._seated.remove(agent)
            fields = {"unreachable": (), **fields}
        self.members[agent] = dataclasses.replace(self.members[agent], **fields)


def report_of(words: dict[str, str]) -> FailureReport:
    """A report from the words of a transcript line: cause= step= signature= exit= committed=."""
    return FailureReport(
        cause=Cause(words.get("cause", "worker_exit")),
        rank=int(words.get("rank", "0")),
        step=int(words.get("step", "0")),
        signature=words.get("signature", ""),
        text="Traceback of " + words.get("signature", "nothing"),
        exit_code=int(words["exit"]) if "exit" in words else None,
        committed_steps=int(words.get("committed", "1")),
        generation=int(words.get("generation", "0")),
        node_local="local" in words,
        lacks=Lack(words.get("lacks", "")),
    )
