"""Data order: the order of a whole run, which may change when the data does; and what to do when it has changed.

A run begins with one order. If its data set later grows, or another one takes its place, a further segment begins at a
known sample, and what came before stays as it was: a record of the segments tells every sample of the run for ever.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from elastic.plan.mixture import Mixture
from elastic.plan.order import ORDER_VERSION, Order, OrderKind
from elastic.plan.stream import StreamOrder


class SampleOrder(Protocol):
    """What tells the item of a global sample number."""

    def index(self, sample: int, /) -> int: ...


AnyOrder = Order | Mixture | StreamOrder


class OnChange(enum.StrEnum):
    """What to do when the data is not what the saved run used."""

    REFUSE = "refuse"
    APPEND = "append"
    RESTART = "restart"
    IGNORE = "ignore"


@dataclass(frozen=True, kw_only=True)
class Segment:
    """From global sample `start` on, the order of one data set; `first_epoch` is the number of its first epoch."""

    start: int
    first_epoch: int
    order: AnyOrder

    def index(self, sample: int) -> int:
        """Item that a global sample number of this segment is."""
        return self.order.index(sample - self.start + self.first_epoch * self.order.length)

    def epoch_of(self, sample: int) -> tuple[int, int]:
        """The (epoch, position within it) of a sample."""
        epoch, position = divmod(sample - self.start, self.order.length)
        return epoch + self.first_epoch, position


@dataclass(frozen=True, kw_only=True)
class DataOrder:
    """All segments of a run, by their start; the first starts at 0."""

    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        starts = [segment.start for segment in self.segments]
        if not starts or starts[0] != 0 or starts != sorted(starts):
            raise ValueError(f"segments start at 0 and follow one another; got starts {starts}")

    @classmethod
    def of(cls, order: AnyOrder) -> DataOrder:
        """A run that has only ever known one order."""
        return cls(segments=(Segment(start=0, first_epoch=0, order=order),))

    def segment_of(self, sample: int) -> Segment:
        """The segment that a sample lies in."""
        if sample < 0:
            raise ValueError(f"sample numbers start at 0; got {sample}")
        return next(segment for segment in reversed(self.segments) if segment.start <= sample)

    @property
    def items(self) -> int:
        """Items that a data set must hold for what is still to come."""
        return self.segments[-1].order.length

    def index(self, sample: int) -> int:
        """Item of the data set that a global sample number is."""
        return self.segment_of(sample).index(sample)

    def epoch_of(self, sample: int) -> tuple[int, int]:
        """The (epoch, position within it) of a sample, both from 0."""
        return self.segment_of(sample).epoch_of(sample)

    def to_plain(self) -> dict[str, Any]:
        """JSON types; read back by `from_plain`."""
        segments = [
            {"start": each.start, "first_epoch": each.first_epoch, "order": _order_to_plain(each.order)}
            for each in self.segments
        ]
        return {"version": ORDER_VERSION, "segments": segments}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> DataOrder:
        """Read what `to_plain` made.

        Raises:
            ValueError: made by a version that computes orders in another way, or not made by `to_plain`.
        """
        if plain.get("version") != ORDER_VERSION:
            raise ValueError(
                f"the order is of version {plain.get('version')}, and {ORDER_VERSION} is computed here; "
                "take the version of elastic that the run used"
            )
        try:
            return cls(
                segments=tuple(
                    Segment(start=each["start"], first_epoch=each["first_epoch"], order=_order_of(each["order"]))
                    for each in plain["segments"]
                )
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not an order of ours: {plain!r:.120}") from error


@dataclass(frozen=True, kw_only=True)
class Succession:
    """The order to go on with, what a person is to be told; `refusal` says why there is none."""

    order: DataOrder
    told: str = ""
    refusal: str = ""


@dataclass(frozen=True, kw_only=True)
class Data:
    """A data set as far as its order goes: how it is run through, and a fingerprint of its content ("": unknown)."""

    order: AnyOrder
    fingerprint: str = ""
    first_items_changed: bool = False
    """Whether, of a data set that has grown, the items that were there before are other ones now."""


def succeed(saved: DataOrder, saved_fingerprint: str, now: Data, *, position: int, on_change: OnChange) -> Succession:
    """How a run that stands at `position` goes on with the data that there is now."""
    last = saved.segments[-1].order
    same_content = not (saved_fingerprint and now.fingerprint) or saved_fingerprint == now.fingerprint
    if last == now.order and same_content:
        return Succession(order=saved)
    found = _difference(last, now.order, same_content)
    if isinstance(now.order, StreamOrder) and last != now.order:
        why = "a stream's shards belong to the slots of its global batch, and cannot go on under another"
        return Succession(order=saved, refusal=f"{found}: {why}; keep both batch sizes, or start another run")
    match on_change:
        case OnChange.APPEND:
            return _append(saved, now, found, position)
        case OnChange.RESTART:
            return _restart(saved, now.order, found, position)
        case OnChange.IGNORE:
            return _ignore(saved, now.order, found)
    return Succession(order=saved, refusal=f"{found}. {_CHOICES}")


_CHOICES = (
    "Give the run the data it was started with, or say what is meant with data.on_change: append (this epoch is "
    "finished on the items that it began with, later epochs use all), restart (a new epoch over the new data begins "
    "here; the rest of this epoch is never used), ignore (the data is the same in all that matters: go on as before)"
)


def _append(saved: DataOrder, now: Data, found: str, position: int) -> Succession:
    last, order = saved.segments[-1], now.order
    if not (isinstance(last.order, Order) and isinstance(order, Order) and _grown(last.order, order)):
        return Succession(order=saved, refusal=f"{found}: append is for the same data with more items at its end")
    if now.first_items_changed:
        changed = f"append is for the same data with more items at its end, but the first {last.order.length} changed"
        return Succession(order=saved, refusal=f"{found}: {changed}")
    reached = max(position, last.start)
    epoch, place = last.epoch_of(reached)
    start = reached + (last.order.length - place if place else 0)
    epoch += 1 if place else 0
    told = f"{found}: appended; from sample {start}, where epoch {epoch} begins, all {order.length} items are used"
    return Succession(order=_followed(saved, Segment(start=start, first_epoch=epoch, order=order)), told=told)


def _restart(saved: DataOrder, order: AnyOrder, found: str, position: int) -> Succession:
    if isinstance(order, StreamOrder):
        return Succession(order=saved, refusal=f"{found}: shards that are streamed cannot be started anew midway")
    epoch, place = saved.epoch_of(position)
    left = saved.segment_of(position).order.length - place if place else 0
    epoch += 1 if place else 0
    told = f"{found}: epoch {epoch} begins at sample {position}; {left} items of the epoch before it are never used"
    return Succession(order=_followed(saved, Segment(start=position, first_epoch=epoch, order=order)), told=told)


def _ignore(saved: DataOrder, order: AnyOrder, found: str) -> Succession:
    least = saved.segments[-1].order.length
    if order.length < least:
        return Succession(
            order=saved, refusal=f"{found}: it cannot be ignored, since the order names items up to {least}"
        )
    return Succession(order=saved, told=f"{found}: ignored, the order stays that of {least} items")


def _followed(saved: DataOrder, segment: Segment) -> DataOrder:
    earlier = tuple(each for each in saved.segments if each.start < segment.start)
    return DataOrder(segments=(*earlier, segment))


def _grown(old: Order, new: Order) -> bool:
    alike = (old.seed, old.kind, old.block_items) == (new.seed, new.kind, new.block_items)
    return alike and new.length > old.length


def _difference(saved: AnyOrder, now: AnyOrder, same_content: bool) -> str:
    if type(saved) is type(now) and saved.length != now.length:
        return f"the data set holds {now.length} items; the run was using {saved.length}"
    if saved != now:
        return f"the order of the data is now {_named(now)}; the run was using {_named(saved)}"
    assert not same_content
    return f"the data set holds {now.length} items as before, but their content is another"


def _named(order: AnyOrder) -> str:
    return ", ".join(f"{name} {value}" for name, value in _order_to_plain(order).items() if name != "parts")


def _order_to_plain(order: AnyOrder) -> dict[str, Any]:
    match order:
        case Mixture():
            parts = [_order_to_plain(part) for part in order.parts]
            return {"kind": "mixture", "weights": list(order.weights), "parts": parts}
        case StreamOrder():
            return {
                "kind": "stream",
                "global_batch_size": order.global_batch_size,
                "micro_batch_size": order.micro_batch_size,
            }
    return {"kind": order.kind.value, "length": order.length, "seed": order.seed, "block_items": order.block_items}


def _order_of(plain: Mapping[str, Any]) -> AnyOrder:
    match plain["kind"]:
        case "mixture":
            parts = tuple(_order_of(part) for part in plain["parts"])
            return Mixture(parts=tuple(p for p in parts if isinstance(p, Order)), weights=tuple(plain["weights"]))
        case "stream":
            return StreamOrder(global_batch_size=plain["global_batch_size"], micro_batch_size=plain["micro_batch_size"])
    return Order(
        length=plain["length"],
        seed=plain["seed"],
        kind=OrderKind(plain["kind"]),
        block_items=plain["block_items"],
    )
