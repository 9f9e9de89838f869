"""Source: what a run reads, in which order, and whether it is what the saved run was reading."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from elastic.checkpoint.places import share
from elastic.checkpoint.restored import Restored
from elastic.config.model import Settings
from elastic.data.carrier import Transport
from elastic.data.digest import step_digest
from elastic.data.fetch import Collate, MapDataset
from elastic.data.fingerprint import fingerprint
from elastic.data.mixed import MixedDataset
from elastic.data.stream import ShardStream
from elastic.distributed.group import Collectives
from elastic.errors import DataError
from elastic.plan.batch import BatchPlan
from elastic.plan.batch_mode import BatchMode
from elastic.plan.data_order import AnyOrder, Data, DataOrder, OnChange, succeed
from elastic.plan.mix import mix_pair
from elastic.plan.mixture import Mixture
from elastic.plan.order import ORDER_VERSION, Order, OrderKind
from elastic.plan.stream import StreamOrder


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """A data set with how it is put together and brought; made by `Session.loader`."""

    dataset: MapDataset | ShardStream
    collate_fn: Collate | None = None
    transport: Transport = field(default_factory=Transport)


@dataclass(frozen=True, kw_only=True)
class Settled:
    """What a run reads from here on."""

    source: DataSource
    order: DataOrder
    fingerprint: str
    states: Mapping[int, str]
    """Where the slots of a stream stood when the state was saved."""
    told: str
    """What a person is to be told of it."""

    def to_plain(self, *, states: Mapping[int, str], last: tuple[int, int, int] | None) -> dict[str, Any]:
        """What a checkpoint keeps of it; `last`: (start, stop, digest) of the last step."""
        return {
            "order": self.order.to_plain(),
            "fingerprint": self.fingerprint,
            "slots": {str(slot): text for slot, text in sorted(states.items())},
            "last_step": list(last) if last is not None else None,
        }


def with_slots(restored: Restored, source: DataSource, own: Mapping[int, str], *, group: Collectives) -> Restored:
    """A state that workers have kept, with where the slots of a stream stand. Every rank calls it. Raises PeerLost.

    `own`: of the slots that this rank has run up to this state. Where the others of its slots stood is known as of the
    last time that it was shared; what came after that is read once more.
    """
    if not isinstance(source.dataset, ShardStream):
        return restored
    everyone = share(group, {str(slot): text for slot, text in own.items()})
    slots = dict(restored.data["slots"])
    for states in everyone:
        slots |= states
    return replace(restored, data={**restored.data, "slots": slots})


def settle(
    source: DataSource, settings: Settings, restored: Restored, plan: BatchPlan, *, group: Collectives
) -> Settled:
    """Find the order to go on with; the same on all ranks.

    Raises:
        DataError: there is no data, ranks see different data, or it is not the data of the saved run.
    """
    dataset, probes = source.dataset, settings.data.probe_items
    order = order_of(dataset, settings, plan)
    found = fingerprint(dataset, items=probes)
    _same_everywhere({"order": DataOrder.of(order).to_plain(), "fingerprint": found}, group)
    saved = restored.data
    if not restored.consumed_samples or not saved:
        _known_version(restored)
        return Settled(source=source, order=DataOrder.of(order), fingerprint=found, states={}, told="")
    try:
        before = DataOrder.from_plain(saved["order"])
    except ValueError as error:
        raise DataError(f"iteration {restored.iteration} cannot be continued here: {error}") from error
    data = Data(order=order, fingerprint=found, first_items_changed=_grown_otherwise(dataset, before, saved, probes))
    change = OnChange(settings.data.on_change.value)
    succession = succeed(before, saved["fingerprint"], data, position=restored.consumed_samples, on_change=change)
    if succession.refusal:
        raise DataError(succession.refusal)
    _check_last_step(saved, before)
    states = {int(slot): text for slot, text in saved["slots"].items()}
    return Settled(source=source, order=succession.order, fingerprint=found, states=states, told=succession.told)


def order_of(dataset: MapDataset | ShardStream, settings: Settings, plan: BatchPlan) -> AnyOrder:
    """The order that a new run with these settings would use."""
    if isinstance(dataset, ShardStream):
        return _stream_order(dataset, settings, plan)
    length, seed = length_of(dataset), settings.training.seed
    if not isinstance(dataset, MixedDataset):
        return _order(length, settings, seed=seed)
    parts = tuple(_order(part, settings, seed=mix_pair(seed, number)) for number, part in enumerate(dataset.lengths))
    return Mixture(parts=parts, weights=dataset.weights)


def length_of(dataset: MapDataset) -> int:
    """Items of a map-style data set.

    Raises:
        DataError: it has no length, none of its items, or another length each time.
    """
    name = type(dataset).__name__
    try:
        length, again = len(dataset), len(dataset)
    except TypeError as error:
        raise DataError(
            f"{name} has no length; a map-style data set with __len__ and __getitem__ is needed, or, for data that can "
            "only be read one sample after the other, an elastic.ShardStream"
        ) from error
    if length != again:
        raise DataError(f"{name} says that it holds {length} items and then {again}: its length must stay the same")
    if length == 0:
        raise DataError(f"{name} is empty: there is nothing to train on")
    return length


def _order(length: int, settings: Settings, *, seed: int) -> Order:
    kind = OrderKind(settings.data.order.value)
    block = settings.data.block_items if kind is OrderKind.BLOCK_SHUFFLE else 0
    return Order(length=length, seed=seed, kind=kind, block_items=block)


def _stream_order(stream: ShardStream, settings: Settings, plan: BatchPlan) -> StreamOrder:
    if settings.training.batch is not BatchMode.FIXED_GLOBAL:
        raise DataError("a ShardStream belongs to the slots of a global batch: set training.batch to fixed_global")
    if stream.shards < plan.slots:
        raise DataError(
            f"the stream has {stream.shards} shards, the global batch {plan.slots} slots: each slot needs a shard of "
            "its own. Cut the data into more shards, or make training.micro_batch_size larger"
        )
    return StreamOrder(global_batch_size=plan.global_batch_size, micro_batch_size=plan.micro_batch_size)


def _same_everywhere(own: Mapping[str, Any], group: Collectives) -> None:
    everyone = group.gather(json.dumps(own, sort_keys=True))
    odd = group.broadcast(None if everyone is None else [each != everyone[0] for each in everyone])
    if any(odd):
        raise DataError(
            f"rank {odd.index(True)} sees other data than rank 0 (here: {own}): every node needs the same data set, "
            "and the same settings for it"
        )


def _known_version(restored: Restored) -> None:
    if restored.order_version not in (None, 0, ORDER_VERSION):
        raise DataError(
            f"iteration {restored.iteration} was saved with orders of version {restored.order_version}, and "
            f"{ORDER_VERSION} is computed here; take the version of elastic that the run used"
        )


def _grown_otherwise(
    dataset: MapDataset | ShardStream, before: DataOrder, saved: Mapping[str, Any], probes: int
) -> bool:
    """Whether a data set that has more items now has other ones in the place of those that it had."""
    match before.last.order, dataset:
        case Mixture() as last, MixedDataset() if len(last.lengths) == len(dataset.lengths):
            was, now = last.lengths, dataset.lengths
        case Order() as last, _ if not isinstance(dataset, ShardStream):
            was, now = (last.length,), (len(dataset),)
        case _:
            return False
    if was == now or any(less > more for less, more in zip(was, now, strict=True)):
        return False
    first = fingerprint(dataset, items=probes, lengths=was)
    return bool(first and saved["fingerprint"] and first != saved["fingerprint"])


def _check_last_step(saved: Mapping[str, Any], order: DataOrder) -> None:
    """The samples that the saved run used last are those that its order names, or we would go on somewhere else."""
    if saved["last_step"] is None:
        return
    start, stop, digest = saved["last_step"]
    expected = step_digest((sample, order.index(sample)) for sample in range(start, stop))
    if digest != expected:
        raise DataError(
            f"the last step before the save used samples {start} to {stop} with the digest {digest}; the order that "
            f"was saved gives {expected}. The run did not use the samples that it says: see `elastic audit`"
        )
