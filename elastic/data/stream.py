"""Stream: samples that can only be read one after the other, from logical shards that belong to slots.

Slot v of the global batch reads the shards v, v + slots, v + 2 * slots, ..., over and over. Whoever runs the slot reads
on where it stood: from the state that travels with each micro-batch, or by reading again what came after it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch.utils.data import default_collate

from elastic.data.fetch import Collate, Fetched, put_together, reseed
from elastic.data.sampler import Key
from elastic.errors import DataError
from elastic.plan.mix import mix_pair
from elastic.plan.stream import StreamOrder, slot_and_place, slot_index

OpenShard = Callable[[int, int], Iterable[Any]]
"""(shard, epoch) -> its samples from the first on. The epoch counts how often the shard was read before.

An iterator with state_dict() and load_state_dict(), JSON types only, is put back by them; any other is read again up
to where it was. It must give the same samples each time; what it draws at random is seeded for each sample.
"""


class ShardStream:
    """A data set that is read, not indexed."""

    def __init__(self, open_shard: OpenShard, *, shards: int, fingerprint: str = "") -> None:
        """`shards`: at least as many as the global batch has slots. `fingerprint`: equal where the content is."""
        if shards < 1:
            raise DataError(f"a stream needs at least one shard; got {shards}")
        self.open_shard = open_shard
        self.shards = shards
        self.fingerprint = fingerprint


@dataclass(frozen=True, kw_only=True)
class SlotState:
    """Where a slot stands in its shards."""

    read: int = 0
    """Samples read in all."""
    epoch: int = 0
    shard: int = 0
    """Number of its present shard among its own."""
    item: int = 0
    """Samples read of the present shard in this epoch."""
    inner: Any = None
    """State of the shard's own iterator, where it has any."""

    @classmethod
    def from_text(cls, text: str) -> SlotState:
        """Read what `SlotReader.state` gave."""
        return cls(**json.loads(text))


class StreamFetcher:
    """Asked like a map-style data set: a key's index names the slot and how much it has read before."""

    def __init__(
        self,
        stream: ShardStream,
        *,
        order: StreamOrder,
        seed: int,
        collate: Collate | None,
        states: Mapping[int, str],
    ) -> None:
        self._stream = stream
        self._order = order
        self._seed = seed
        self._collate: Collate = default_collate if collate is None else collate
        self._states = dict(states)
        self._readers: dict[int, SlotReader] = {}

    def __len__(self) -> int:
        return self._stream.shards

    def __getitem__(self, key: Key) -> Fetched:
        return self.__getitems__([key])

    def __getitems__(self, keys: Sequence[Key]) -> Fetched:
        slot, before = slot_and_place(keys[0][1])
        reader = self._reader(slot, before)
        items, indices = [], []
        for _ in keys:
            indices.append(slot_index(slot, reader.read))
            items.append(reader.next())
        state = reader.state()
        batch = put_together(items, collate=self._collate, seed=self._seed, first=keys[0][0])
        return tuple(sample for sample, _ in keys), tuple(indices), batch, state

    def _reader(self, slot: int, before: int) -> SlotReader:
        """The slot's reader, put where it has read `before` samples."""
        reader = self._readers.get(slot)
        if reader is None or reader.read > before:
            known = SlotState.from_text(self._states[slot]) if slot in self._states else SlotState()
            reader = SlotReader(
                self._stream,
                slot=slot,
                order=self._order,
                seed=self._seed,
                state=known if known.read <= before else SlotState(),
            )
            self._readers[slot] = reader
        while reader.read < before:
            reader.next()
        return reader


class SlotReader:
    """Reads one slot's shards, one sample after the other."""

    def __init__(self, stream: ShardStream, *, slot: int, order: StreamOrder, seed: int, state: SlotState) -> None:
        self._stream = stream
        self._slot = slot
        self._order = order
        self._seed = seed
        self._own = range(slot, stream.shards, order.slots)
        self.read = state.read
        self._epoch, self._shard, self._item = state.epoch, state.shard, state.item
        self._items: Iterator[Any] | None = None
        self._inner = state.inner

    def next(self) -> Any:
        """The next sample; after the last one of all its shards, the first again.

        Raises:
            DataError: there are no samples at all.
        """
        empty = 0
        while True:
            items = self._items if self._items is not None else self._open()
            try:
                item = self._draw(items, self.read)
            except StopIteration:
                empty += 1
                if empty > len(self._own):
                    raise DataError(f"the shards {list(self._own)} of slot {self._slot} hold no samples") from None
                self._go_on()
                continue
            self.read += 1
            self._item += 1
            return item

    def state(self) -> str:
        """Where it stands, as JSON.

        Raises:
            DataError: the shard's own state is not of JSON types.
        """
        inner = self._items.state_dict() if _stateful(self._items) else None  # type: ignore[union-attr]
        state = SlotState(read=self.read, epoch=self._epoch, shard=self._shard, item=self._item, inner=inner)
        try:
            text = json.dumps(asdict(state), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise self._no_json(inner, str(error)) from error
        if json.loads(text)["inner"] != inner:
            raise self._no_json(inner, "it comes back as something else (tuples as lists, numbers as keys as text)")
        return text

    def _no_json(self, inner: object, why: str) -> DataError:
        return DataError(
            f"the state of shard {self._own[self._shard]}'s {type(self._items).__name__} is not JSON: {why}. "
            f"state_dict() must give numbers, strings, lists and dicts with string keys; got {inner!r:.80}"
        )

    def _open(self) -> Iterator[Any]:
        items = self._items = iter(self._stream.open_shard(self._own[self._shard], self._epoch))
        if self._inner is not None:
            items.load_state_dict(self._inner)  # type: ignore[attr-defined]
            self._inner = None
            return items
        for number in range(self._item):
            try:
                self._draw(items, self.read - self._item + number)
            except StopIteration:
                raise DataError(
                    f"shard {self._own[self._shard]} ended after {number} samples; it had given {self._item} before: "
                    "a shard must give the same samples each time that it is opened"
                ) from None
        return items

    def _draw(self, items: Iterator[Any], before: int) -> Any:
        reseed(mix_pair(self._seed, self._order.sample(self._slot, before)))
        try:
            return next(items)
        except StopIteration:
            raise
        except Exception as error:  # any exception: it is the user's and goes on, with the place added
            error.add_note(f"while reading shard {self._own[self._shard]}, sample {self._item} of epoch {self._epoch}")
            raise

    def _go_on(self) -> None:
        """To the next shard; behind the last one, to the first in another epoch."""
        self._items, self._item = None, 0
        self._shard += 1
        if self._shard == len(self._own):
            self._shard, self._epoch = 0, self._epoch + 1


def _stateful(items: object) -> bool:
    return callable(getattr(items, "state_dict", None)) and callable(getattr(items, "load_state_dict", None))
