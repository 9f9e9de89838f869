"""Leader: does what the machine decides, while this agent leads. It alone watches the members.

Every write of the world compares the world key's revision and the leader's own candidate key, so that a leader that
has been replaced without knowing it changes nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import secrets
import threading
from collections.abc import Callable, Sequence

from elastic.clock import Clock
from elastic.errors import StoreError
from elastic.events import Emit, NodeLost, NodesAwaited
from elastic.rendezvous.apart import lay_apart, put_together
from elastic.rendezvous.fences import world_fence, world_write
from elastic.rendezvous.keys import Keys
from elastic.rendezvous.kv import Entry, KeyValueStore, Put, Update, created_at
from elastic.rendezvous.machine import decide
from elastic.rendezvous.model import World, world_from_json, world_to_json
from elastic.rendezvous.news import News
from elastic.rendezvous.probe import Target, probe_all
from elastic.rendezvous.roll import Roll
from elastic.rendezvous.verdict import Close, Evict, Form, Open, Probe, Verdict, Wait
from elastic.rendezvous.view import LeaderView, Limits, observe, roster, with_probes
from elastic.rendezvous.whole import WholeWorlds
from elastic.rendezvous.wish import under
from elastic.rendezvous.wish_watch import WishWatch

_log = logging.getLogger(__name__)
# After an eviction the watch tells within milliseconds; asking again sooner would only ask the same.
_EVICTED_S = 0.05
# Of more than a few that are not back, each is asked only when there was time for them to come.
_FEW, _COMING_S, _EACH_MORE_S = 32, 0.3, 0.002
_QUICK_S, _LONGEST_GATHER_S = 0.001, 0.1
# At most a tenth of the time is spent on looking.
_GATHER = 9


class Leader:
    """One agent's term after another. `lead` is run by the election's thread."""

    def __init__(
        self, store: KeyValueStore, *, keys: Keys, limits: Limits, clock: Clock, emit: Emit,
        draw: Callable[[], str] = secrets.token_hex,
    ) -> None:  # fmt: skip
        """`draw`: makes the secret of a generation."""
        self._draw = draw
        self._store, self._keys, self._limits, self._clock = store, keys, limits, clock
        self._emit = emit
        self._stopping = False
        self._reconsider = False
        self._calm = threading.Event()
        self._roll = Roll(prefix=keys.members)
        self._news = News(unread=lambda: self._roll.unread)
        self._world: World | None = None
        self._world_revision = 0
        self._world_changed = True
        self._evicted: dict[str, str] = {}
        self._said = ""
        self.whole = WholeWorlds()

    def stop(self) -> None:
        """End the term; `lead` returns soon."""
        self._stopping = True
        self._calm.set()
        self._news.ring()

    def reconsider(self) -> None:
        """This agent's candidate key was written anew: end the term and stand again."""
        self._reconsider = True
        self._news.ring()

    def world_changed(self) -> None:
        """The world key was written: look at it. Called from a watch."""
        self._world_changed = True
        self._news.ring()

    def lead(self, own: Entry) -> None:
        """Decide and do until somebody else leads. `own` is this agent's candidate key."""
        self._roll.clear()
        self._world_changed = True
        self._reconsider = False
        self._evicted.clear()
        wishes = WishWatch(self._store, keys=self._keys, emit=self._emit, on_change=self._news.ring)
        wishes.start()
        watches = (
            self._store.watch(
                self._keys.members, prefix=True, on_update=self._on_members, on_break=lambda _reason: None
            ),
            self._store.watch(
                self._keys.challenge, on_update=lambda update: self._on_challenge(update, own), on_break=lambda _r: None
            ),
        )
        try:
            self._term(own, wishes)
        finally:
            wishes.stop()
            for watch in watches:
                watch.cancel()

    def _term(self, own: Entry, wishes: WishWatch) -> None:
        view = LeaderView(limits=self._limits, leader=own.key.removeprefix(self._keys.candidates))
        while not (self._stopping or self._reconsider):
            self._news.hush()
            began_s = self._clock.monotonic_s()
            if self._world_changed:
                self._world_changed = False
                self._read_world()
            wish, members = wishes.wish, self._roll.members()
            if wish is None or members is None:
                self._news.wait(None)
                continue
            wishes.tell()
            view = under(view, limits=self._limits, wish=wish)
            now_s = self._clock.monotonic_s()
            view = observe(view, world=self._world, members=members, now_s=now_s)
            verdict = decide(view, now_s=now_s)
            self._say(verdict, needed=view.limits.min_nodes)
            took_s = self._clock.monotonic_s() - began_s
            match verdict:
                case Wait(until_s=until_s, awaited=awaited):
                    self._rest(None if until_s is None else max(0.0, until_s - now_s), awaited=awaited)
                    self._gather(took_s)
                case Probe(agents=agents) if self._are_coming(agents, view=view, now_s=now_s):
                    self._rest(_COMING_S, awaited=len(agents))
                case Probe(agents=agents):
                    results = probe_all(self._targets(agents, view=view))
                    view = with_probes(view, results=results, now_s=self._clock.monotonic_s())
                case _:
                    if not self._do(verdict, own=own, view=view):
                        return
                    self._gather(took_s)

    def _do(self, verdict: Evict | Open | Form | Close, *, own: Entry, view: LeaderView) -> bool:
        """Do what changes the store; False where somebody else leads by now."""
        if isinstance(verdict, Evict):
            if not self._leads(own):
                return False
            for agent in verdict.agents:
                self._evicted[agent] = verdict.reason
                self._store.revoke(view.members[agent].lease)
            self._news.wait(_EVICTED_S)
            return True
        world, parts = verdict.world, dict[int, str]()
        if isinstance(verdict, Form):
            world, parts = lay_apart(dataclasses.replace(world, secret=self._draw()), before=view.world)
            self.whole.know(world)
        formed, closed = world.token if isinstance(verdict, Form) else None, isinstance(verdict, Close)
        done = self._store.transact(
            world_fence(self._keys, own=own, world_revision=self._world_revision),
            ops=world_write(self._keys, text=world_to_json(world), formed=formed, closed=closed, parts=parts),
        )
        if not done.succeeded:
            self._world_changed = True
            return self._leads(own)
        self._world, self._world_revision = world, done.revision
        if isinstance(verdict, Form):
            self._tell_losses(view, formed=world)
        return True

    def _rest(self, limit_s: float | None, *, awaited: int) -> None:
        """Until there is news. While very many are awaited, until they are there or a moment later."""
        if self._news.wait(limit_s) and awaited > _FEW:
            self._news.wait(_COMING_S, enough=awaited)

    def _gather(self, took_s: float) -> None:
        """Among very many a look takes long: what arrives meanwhile, and a little longer, is looked at together."""
        if took_s > _QUICK_S:
            self._calm.wait(min(_LONGEST_GATHER_S, _GATHER * took_s))

    def _are_coming(self, agents: Sequence[str], *, view: LeaderView, now_s: float) -> bool:
        """Whether so many are not back yet that it is too early to ask each of them."""
        rush_s = _COMING_S + _EACH_MORE_S * len(view.members)
        return len(agents) > _FEW and now_s < view.world_since_s + rush_s

    def _read_world(self) -> None:
        """Read the world if it is not the one that is known: written by this leader, mostly."""
        entry = self._store.get(self._keys.world)
        if entry is None:
            self._world, self._world_revision = None, 0
            return
        if entry.mod_revision == self._world_revision and self._world is not None:
            return
        world: World | None = world_from_json(entry.value)
        if world is not None and world.apart is not None:
            prefix = self._keys.seats
            texts = {item.key.removeprefix(prefix): item.value for item in self._store.range(prefix).entries}
            world = put_together(world, parts={int(name): text for name, text in texts.items() if name.isdecimal()})
        if world is None:
            # Another leader wrote between the two reads.
            self._world_changed = True
            raise StoreError("the world changed while it was read")
        self.whole.know(world)
        self._world, self._world_revision = world, entry.mod_revision

    def _leads(self, own: Entry) -> bool:
        return self._store.transact([created_at(own.key, own.create_revision)], ops=[]).succeeded

    def _tell_losses(self, view: LeaderView, *, formed: World) -> None:
        for seat in roster(view).gone:
            reason = self._evicted.pop(seat.agent, "its lease ended")
            self._emit(NodeLost(lost=seat.node, reason=f"{reason}; generation {formed.generation} goes on without it"))

    def _say(self, verdict: Verdict, *, needed: int) -> None:
        """Log a decision, once for as long as its reason stays the same. `needed`: the fewest nodes of a world."""
        said = f"{type(verdict).__name__.lower()}: {verdict.reason}"
        if said != self._said:
            self._said = said
            _log.log(logging.DEBUG if isinstance(verdict, Wait | Probe) else logging.INFO, "leader: %s", said)
            if isinstance(verdict, Wait) and verdict.short:
                self._emit(NodesAwaited(here=needed - verdict.short, needed=needed, reason=verdict.reason))

    def _on_members(self, update: Update) -> None:
        self._roll.note(update)
        self._news.written()

    def _on_challenge(self, update: Update, own: Entry) -> None:
        if update.entries:
            # In a thread of its own: a watch must not wait for the store, nor the doubter for this leader's probes.
            nonce = update.entries[-1].value
            threading.Thread(target=self._answer, args=(nonce, own), name="elastic-answer", daemon=True).start()

    def _answer(self, nonce: str, own: Entry) -> None:
        with contextlib.suppress(StoreError):
            self._store.transact([created_at(own.key, own.create_revision)], ops=[Put(self._keys.answer, nonce)])

    def _targets(self, agents: Sequence[str], *, view: LeaderView) -> dict[str, Target]:
        """Where to probe; a member without a key is known by its seat."""
        places: dict[str, Target] = {}
        for agent in agents:
            known = view.members.get(agent) or (view.world.seat_of(agent) if view.world else None)
            if known is not None:
                places[agent] = Target(address=known.address, port=known.probe_port)
        return places
