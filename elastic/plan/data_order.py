"""Data order: the order of a whole run, which may change when the data does; and what to do when it has changed.

A run begins with one order. If its data set later grows, or another one takes its place, a further segment begins at a
known sample, and what came before stays as it was: a record of the segments tells every sample of the run for ever.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from elastic.plan.mixture import Mixture, PartOrder
from elastic.plan.order import ORDER_VERSION, Order, OrderKind
from elastic.plan.segments import Segment, Segments
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


class DataOrder(Segments[AnyOrder]):
    """The order of a run: all segments, by the global number of their first sample."""

    def to_plain(self) -> dict[str, Any]:
        """JSON types; read back by `from_plain`."""
        return {"version": ORDER_VERSION, "segments": _segments_to_plain(self)}

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
    last = saved.last.order
    same_content = not (saved_fingerprint and now.fingerprint) or saved_fingerprint == now.fingerprint
    if _anew(last) == now.order and same_content:
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
    last, order = saved.last, now.order
    if not _grown(last.order, order):
        return Succession(order=saved, refusal=f"{found}: append is for the same data with more items at its end")
    if now.first_items_changed:
        changed = f"append is for the same data with more items at its end, but {_first(last.order)} changed"
        return Succession(order=saved, refusal=f"{found}: {changed}")
    if isinstance(last.order, Mixture) and isinstance(order, Mixture):
        return _append_to_parts(saved, order, found, position)
    grown = saved.grown(order, position=position)
    start, epoch = grown.last.start, grown.last.first_epoch
    told = f"{found}: appended; from sample {start}, where epoch {epoch} begins, all {order.length} items are used"
    return Succession(order=grown, told=told)


def _append_to_parts(saved: DataOrder, order: Mixture, found: str, position: int) -> Succession:
    """Parts of a mixture are in epochs of their own: each that grew finishes its epoch on what that began with."""
    last = saved.last
    assert isinstance(last.order, Mixture)
    epoch, place = last.epoch_of(position)
    epoch += 1 if place else 0
    orders = [part for part in order.parts if isinstance(part, Order)]
    mixture = last.order.grown(orders, sample=last.within(position), becomes=epoch * order.length)
    told = f"{found}: appended; each part finishes its epoch on the items that this began with, and then uses all"
    return Succession(order=saved.followed(Segment(start=position, first_epoch=epoch, order=mixture)), told=told)


def _restart(saved: DataOrder, order: AnyOrder, found: str, position: int) -> Succession:
    if isinstance(order, StreamOrder):
        return Succession(order=saved, refusal=f"{found}: shards that are streamed cannot be started anew midway")
    epoch, place = saved.epoch_of(position)
    left = saved.segment_of(position).order.length - place if place else 0
    epoch += 1 if place else 0
    told = f"{found}: epoch {epoch} begins at sample {position}; {left} items of the epoch before it are never used"
    return Succession(order=saved.followed(Segment(start=position, first_epoch=epoch, order=order)), told=told)


def _ignore(saved: DataOrder, order: AnyOrder, found: str) -> Succession:
    last = saved.last.order
    if order.length < last.length:
        return Succession(
            order=saved, refusal=f"{found}: it cannot be ignored, since the order names items up to {last.length}"
        )
    if isinstance(last, Mixture) and isinstance(order, Mixture) and last.lengths != order.lengths:
        why = "the items of a mixture are numbered part after part, so that the order would name other ones"
        return Succession(order=saved, refusal=f"{found}: it cannot be ignored, since {why}")
    return Succession(order=saved, told=f"{found}: ignored, the order stays that of {last.length} items")


def _grown(old: AnyOrder, new: AnyOrder) -> bool:
    """Whether `new` is the order of the same data with more items at its end; of a mixture, of some parts."""
    match old, new:
        case Order(), Order():
            return new.length > old.length and _alike(old, new)
        case Mixture(), Mixture():
            if old.weights != new.weights or old.lengths == new.lengths:
                return False
            pairs = zip(old.anew.parts, new.parts, strict=True)
            return all(isinstance(a, Order) and isinstance(b, Order) and _alike(a, b) for a, b in pairs)
    return False


def _alike(old: Order, new: Order) -> bool:
    same = (old.seed, old.kind, old.block_items) == (new.seed, new.kind, new.block_items)
    return same and new.length >= old.length


def _anew(order: AnyOrder) -> AnyOrder:
    return order.anew if isinstance(order, Mixture) else order


def _first(order: AnyOrder) -> str:
    if isinstance(order, Mixture):
        return f"of the first {list(order.lengths)} of its parts some"
    return f"the first {order.length}"


def _difference(saved: AnyOrder, now: AnyOrder, same_content: bool) -> str:
    if isinstance(saved, Mixture) and isinstance(now, Mixture) and saved.lengths != now.lengths:
        return f"the parts of the mixture hold {list(now.lengths)} items; the run was using {list(saved.lengths)}"
    if type(saved) is type(now) and saved.length != now.length:
        return f"the data set holds {now.length} items; the run was using {saved.length}"
    if _anew(saved) != now:
        return f"the order of the data is now {_named(now)}; the run was using {_named(_anew(saved))}"
    assert not same_content
    return f"the data set holds {now.length} items as before, but their content is another"


def _named(order: AnyOrder) -> str:
    plain = _order_to_plain(order)
    return ", ".join(f"{name} {plain[name]}" for name in plain if name not in ("parts", "shift"))


def _segments_to_plain(segments: Segments[AnyOrder] | Segments[Order]) -> list[dict[str, Any]]:
    return [
        {"start": each.start, "first_epoch": each.first_epoch, "order": _order_to_plain(each.order)}
        for each in segments.segments
    ]


def _order_to_plain(order: AnyOrder) -> dict[str, Any]:
    match order:
        case Mixture():
            parts = [
                _order_to_plain(part) if isinstance(part, Order) else {"segments": _segments_to_plain(part)}
                for part in order.parts
            ]
            return {"kind": "mixture", "weights": list(order.weights), "parts": parts, "shift": order.shift}
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
            parts = tuple(_part_of(part) for part in plain["parts"])
            return Mixture(parts=parts, weights=tuple(plain["weights"]), shift=plain.get("shift", 0))
        case "stream":
            return StreamOrder(global_batch_size=plain["global_batch_size"], micro_batch_size=plain["micro_batch_size"])
    return _plain_order_of(plain)


def _part_of(plain: Mapping[str, Any]) -> PartOrder:
    if "segments" not in plain:
        return _plain_order_of(plain)
    return Segments(
        segments=tuple(
            Segment(start=each["start"], first_epoch=each["first_epoch"], order=_plain_order_of(each["order"]))
            for each in plain["segments"]
        )
    )


def _plain_order_of(plain: Mapping[str, Any]) -> Order:
    return Order(
        length=plain["length"],
        seed=plain["seed"],
        kind=OrderKind(plain["kind"]),
        block_items=plain["block_items"],
    )
