"""Runs simulated with the real sampler and loader: worlds come and go, ranks die anywhere between fetch and commit.

One seed is one run. What its final lineage used, in order, is compared with a run that nothing happened to; and the
events that its ranks would have written go through the audit.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from elastic.data.audit import Account, account
from elastic.data.carrier import Transport
from elastic.data.digest import RUN_DIGEST_START, chain, step_digest
from elastic.data.loader import ElasticLoader, MicroBatch
from elastic.data.mixed import MixedDataset
from elastic.data.stream import ShardStream
from elastic.events import Record, Restored, StepCommitted
from elastic.plan.batch import BatchPlan
from elastic.plan.data_order import DataOrder
from elastic.plan.mixture import Mixture
from elastic.plan.order import Order, OrderKind
from elastic.plan.stream import StreamOrder
from tests.harness.datasets import Drawing, draw_shard

MOST_RANKS = 8
KINDS = ("map", "blocks", "sequential", "mixed", "stream")
"""Of data sets and orders, see `make_setting`."""
Used = tuple[int, int, Any]
"""(global sample number, index, the item with its random draws)."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a simulated run trains on; nothing divides anything but by chance."""

    dataset: Any
    order: Any
    total: int
    batch: int
    micro: int
    seed: int

    @property
    def streamed(self) -> bool:
        return isinstance(self.dataset, ShardStream)

    @property
    def epoch(self) -> int:
        return int(self.order.length)


@dataclass(kw_only=True)
class Saved:
    """What a restart goes on from."""

    iteration: int = 0
    position: int = 0
    digest: int = RUN_DIGEST_START
    states: Mapping[int, str] = field(default_factory=dict)


@dataclass(kw_only=True)
class Outcome:
    """What a simulated run did."""

    used: list[Used] = field(default_factory=list)
    """Of the final lineage, in order of the steps."""
    records: list[Record] = field(default_factory=list)
    worlds: list[int] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """How often what happened."""
    silent: set[int] = field(default_factory=set)
    """Iterations of the lineage of which not all ranks could tell."""

    def account(self, order: Any) -> Account:
        return account(self.records, order=order)


def check(kind: str, seeds: Iterable[int], *, most_workers: int = 0) -> Outcome:
    """Simulate one run for each seed, and compare it with the undisturbed one; what happened in all of them."""
    happened = Outcome()
    for seed in seeds:
        chance = random.Random(f"{kind}/{seed}")
        setting = make_setting(chance, kind=kind)
        run = simulate(setting, chance, most_workers=most_workers)
        assert run.used == undisturbed(setting), f"seed {seed}"
        assert [sample for sample, *_ in run.used] == list(range(setting.total)), f"seed {seed}"
        found = run.account(DataOrder.of(setting.order))
        assert found.problems == (), f"seed {seed}"
        assert found.exact, f"seed {seed}"
        counts = run.counts
        assert (found.samples, found.recomputed_steps) == (setting.total, counts["recomputed steps"]), f"seed {seed}"
        assert found.proved_by_digest_steps == counts["steps with a word missing"] - counts["of them recomputed"]
        happened.worlds += run.worlds
        happened.counts += counts
        happened.counts["runs"] += 1
    return happened


def make_setting(chance: random.Random, *, kind: str) -> Setting:
    """A small data set of the kind: map, blocks, sequential, mixed or stream."""
    seed, batch = chance.randrange(1000), chance.randint(1, 17)
    micro = chance.randint(1, batch)
    common = {"total": chance.randint(20, 110), "batch": batch, "micro": micro, "seed": seed}
    if kind == "stream":
        order = StreamOrder(global_batch_size=batch, micro_batch_size=micro)
        shards = order.slots + chance.randint(0, 5)
        return Setting(dataset=ShardStream(draw_shard(chance.randint(1, 9)), shards=shards), order=order, **common)
    lengths = [chance.randint(1, 40) for _ in range(3)]
    if kind == "mixed":
        weights = [chance.randint(1, 5) for _ in lengths]
        dataset = MixedDataset([Drawing(length) for length in lengths], weights=weights)
        parts = tuple(Order(length=length, seed=seed + at) for at, length in enumerate(lengths))
        return Setting(dataset=dataset, order=Mixture(parts=parts, weights=dataset.weights), **common)
    order_kind = {"map": OrderKind.SHUFFLE, "blocks": OrderKind.BLOCK_SHUFFLE, "sequential": OrderKind.SEQUENTIAL}[kind]
    block = chance.randint(1, 9) if kind == "blocks" else 0
    order = Order(length=lengths[0], seed=seed, kind=order_kind, block_items=block)
    return Setting(dataset=Drawing(lengths[0]), order=order, **common)


def undisturbed(setting: Setting) -> list[Used]:
    """What a world of one uses that nothing happens to."""
    loader, used = _loader(setting, Saved(), setting.batch, setting.micro, 1, 0, Transport()), []
    while not loader.finished:
        used += [each for micro in loader.next_step() for each in _used(micro)]
        loader.commit()
    return used


def simulate(setting: Setting, chance: random.Random, *, most_workers: int = 0) -> Outcome:
    """Live through generations of random worlds until all samples are used and saved."""
    outcome, at, saved, lineage = Outcome(), Saved(), Saved(), {}
    batch, micro, generation = setting.batch, setting.micro, 0
    while saved.position < setting.total:
        if not setting.streamed and chance.random() < 0.3:
            batch = chance.randint(1, 17)
            micro = chance.randint(1, batch)
            outcome.counts["batch changes"] += 1
        transport = Transport(num_workers=chance.randint(0, most_workers), prefetch_factor=None)
        world = chance.randint(1, MOST_RANKS)
        loaders = [_loader(setting, at, batch, micro, world, rank, transport) for rank in range(world)]
        outcome.worlds.append(world)
        life = _Life(loaders=loaders, generation=generation, outcome=outcome, lineage=lineage, setting=setting)
        at, saved = life.live(at, saved, chance)
        for loader in loaders:
            loader.close()
        generation += 1
    outcome.used = [each for iteration in sorted(lineage) for each in lineage[iteration]]
    return outcome


def _loader(
    setting: Setting, saved: Saved, batch: int, micro: int, world: int, rank: int, transport: Transport
) -> ElasticLoader:
    return ElasticLoader(
        setting.dataset,
        plan=BatchPlan(global_batch_size=batch, micro_batch_size=micro, total_samples=setting.total),
        order=DataOrder.of(setting.order),
        seed=setting.seed,
        world_size=world,
        rank=rank,
        position=saved.position,
        states=saved.states,
        collate_fn=list,
        transport=transport,
    )


@dataclass(kw_only=True)
class _Life:
    """One generation: steps, saves, and an end somewhere."""

    loaders: list[ElasticLoader]
    generation: int
    outcome: Outcome
    lineage: dict[int, list[Used]]
    setting: Setting

    def live(self, at: Saved, saved: Saved, chance: random.Random) -> tuple[Saved, Saved]:
        """From `at` on, with `saved` durable; where the next generation begins, and what is durable then."""
        counts = self.outcome.counts
        for iteration in [each for each in self.lineage if each > at.iteration]:
            counts["of them recomputed"] += iteration in self.outcome.silent
            self.outcome.silent.discard(iteration)
            del self.lineage[iteration]
            counts["recomputed steps"] += 1
        self._tell_restored(at)
        known = at.states  # where the slots of a stream stand, as far as all ranks know it of each other
        for _ in range(chance.randint(0, 5)):
            if self.loaders[0].finished:
                break
            at = self._step(at, chance)
            if chance.random() < 0.3 or self.loaders[0].finished:
                saved, known = at, at.states
        if chance.random() < 0.3 or self.loaders[0].finished:
            return at, at  # a planned change of the world: saved first
        if chance.random() < 0.5:
            return self._lose_some(at, known, chance), saved
        self._die(chance)
        return saved, saved

    def _step(self, at: Saved, chance: random.Random, *, dead: frozenset[int] = frozenset()) -> Saved:
        """One step of all ranks, of which the `dead` do not live to tell of it."""
        if chance.random() < 0.1:  # a step begun, broken off and begun again
            for micro, _ in zip(self.loaders[0].next_step(), range(1), strict=False):
                assert micro.samples
        parts = [list(loader.next_step()) for loader in self.loaders]
        used = [[each for micro in part for each in _used(micro)] for part in parts]
        stops = {loader.commit() for loader in self.loaders}
        assert len(stops) == 1
        flat = [each for part in used for each in part]
        states = {slot: text for loader in self.loaders for slot, text in loader.states.items()}
        total = step_digest((sample, index) for sample, index, _ in flat)
        after = Saved(iteration=at.iteration + 1, position=stops.pop(), digest=chain(at.digest, total), states=states)
        assert after.iteration not in self.lineage
        self.lineage[after.iteration] = flat
        for rank, part in enumerate(used):
            if rank not in dead:
                self._tell_step(rank, part, at, after, samples=len(flat), digest=total)
        if not self.setting.streamed:
            first, last = at.position // self.setting.epoch, (after.position - 1) // self.setting.epoch
            self.outcome.counts["epoch ends inside of steps"] += first != last
            self.outcome.counts["epoch ends between steps"] += after.position % self.setting.epoch == 0
        return after

    def _lose_some(self, at: Saved, known: Mapping[int, str], chance: random.Random) -> Saved:
        """Some ranks die, the others stay; the newest step that one of these has counts, whoever did not live to tell.

        Where the slots of the dead stood in a stream is known only as of the last time that it was shared.
        """
        self.outcome.counts["survived losses"] += 1
        ranks = range(len(self.loaders))
        dead = frozenset(chance.sample(ranks, chance.randint(0, len(ranks) - 1)))
        if chance.random() < 0.5:
            at = self._step(at, chance, dead=dead)
            if dead:
                self.outcome.counts["steps with a word missing"] += 1
                self.outcome.silent.add(at.iteration)
        else:
            list(self._fetch_some(chance))
        own = {slot: text for rank in ranks if rank not in dead for slot, text in self.loaders[rank].states.items()}
        return replace(at, states={**known, **own})

    def _die(self, chance: random.Random) -> None:
        """Each rank is somewhere between its first fetch and its commit; some may have committed already."""
        self.outcome.counts["crashes"] += 1
        for loader, micros in self._fetch_some(chance):
            if chance.random() < 0.3:
                for _ in micros:
                    pass
                loader.commit()

    def _fetch_some(self, chance: random.Random) -> Iterator[tuple[ElasticLoader, Iterator[MicroBatch]]]:
        for loader in self.loaders:
            micros = loader.next_step()
            got = [micro for _, micro in zip(range(chance.randint(0, 4)), micros, strict=False)]
            self.outcome.counts["half fetched"] += bool(got)
            yield loader, micros

    def _tell_restored(self, at: Saved) -> None:
        event = Restored(
            tier="disk", iteration=at.iteration, consumed_samples=at.position, seconds=0.0, reason="simulated"
        )
        for rank in range(len(self.loaders)):
            self._tell(rank, event)

    def _tell_step(
        self, rank: int, part: list[Used], before: Saved, after: Saved, *, samples: int, digest: int
    ) -> None:
        event = StepCommitted(
            iteration=after.iteration,
            start=before.position,
            stop=after.position,
            ranges=tuple((sample, sample + 1) for sample, _, _ in part),
            step_samples=samples,
            step_digest=digest,
            run_digest=after.digest,
            loss=0.0,
            world_size=len(self.loaders),
            seconds=0.0,
        )
        self._tell(rank, event)

    def _tell(self, rank: int, event: Any) -> None:
        self.outcome.records.append(
            Record(time_s=0.0, node=f"n{rank}", rank=rank, generation=self.generation, event=event)
        )


def _used(micro: MicroBatch) -> list[Used]:
    return list(zip(micro.samples, micro.indices, micro.batch, strict=True))
