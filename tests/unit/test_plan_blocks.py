"""Block shuffle, the inverse of a permutation, and what a seek costs."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.plan import permutation
from elastic.plan.data_order import DataOrder
from elastic.plan.order import Order, OrderKind
from elastic.plan.permutation import permute, place_of

quick = settings(deadline=None, max_examples=60)


def blocks(length, block, *, seed=0):
    return Order(length=length, seed=seed, kind=OrderKind.BLOCK_SHUFFLE, block_items=block)


def epoch_indices(order, epoch):
    return [order.index(epoch * order.length + position) for position in range(order.length)]


@quick
@given(length=st.integers(1, 400), key=st.integers(0, 2**64), data=st.data())
def test_the_inverse_finds_every_place(length, key, data):
    place = data.draw(st.integers(0, length - 1))
    assert place_of(permute(place, length=length, key=key), length=length, key=key) == place


@quick
@given(length=st.integers(1, 300), block=st.integers(1, 320), seed=st.integers(0, 99), epoch=st.integers(0, 50))
def test_every_epoch_is_a_permutation_block_by_block(length, block, seed, epoch):
    indices = epoch_indices(blocks(length, block, seed=seed), epoch)
    assert sorted(indices) == list(range(length))
    runs = [index // block for index in indices]
    assert sum(a != b for a, b in itertools.pairwise(runs)) == -(-length // block) - 1, "one visit a block"


def test_blocks_and_the_items_of_each_are_mixed():
    order = blocks(4096, 64)
    first, second = epoch_indices(order, 0), epoch_indices(order, 1)
    assert first != second
    assert [index // 64 for index in first[::64]] != sorted(index // 64 for index in first[::64])
    offsets = {tuple(index % 64 for index in first[at : at + 64]) for at in range(0, 4096, 64)}
    assert len(offsets) == 64, "each block has an order of its own"


@pytest.mark.parametrize("block", [16, 100])
def test_where_blocks_land_is_even(block):
    """Cells of (tenth of the epoch, tenth of the blocks) over many epochs."""
    order, side, epochs = blocks(1000, block, seed=3), 10, 200
    counts = [[0] * side for _ in range(side)]
    for epoch in range(epochs):
        for position in range(0, 1000, block):
            index = order.index(epoch * 1000 + position)
            counts[position * side // 1000][index * side // 1000] += 1
    total = sum(map(sum, counts))
    columns = [sum(row[column] for row in counts) for column in range(side)]
    chi_square = sum(
        (count - sum(row) * columns[column] / total) ** 2 / (sum(row) * columns[column] / total)
        for row in counts
        for column, count in enumerate(row)
    )
    assert chi_square < 126.1  # 81 degrees of freedom: exceeded by chance once in a thousand


def test_golden_values_of_the_block_order():
    """Runs in progress depend on these, as on those of the other orders."""
    assert epoch_indices(blocks(11, 4, seed=7), 2) == [9, 10, 8, 7, 5, 6, 4, 0, 1, 3, 2]
    assert blocks(1_000_003, 1000, seed=42).index(5_000_000) == 40492


@pytest.mark.parametrize("kind", [OrderKind.SHUFFLE, OrderKind.BLOCK_SHUFFLE, OrderKind.SEQUENTIAL])
def test_a_seek_into_ten_million_samples_costs_a_few_mixings_and_no_memory(kind, monkeypatch):
    """Operations are counted, not time: a list of ten million items would take as many."""
    mixings = 0

    def counting(value, *, real=permutation.mix64):
        nonlocal mixings
        mixings += 1
        return real(value)

    monkeypatch.setattr(permutation, "mix64", counting)
    length = 10_000_000
    order = Order(length=length, seed=1, kind=kind, block_items=4096 if kind is OrderKind.BLOCK_SHUFFLE else 0)
    run = DataOrder.of(order)
    batch = [run.index(sample) for sample in range(length // 2, length // 2 + 24)]
    assert len(set(batch)) == 24
    # 6 rounds, and at most 4 walks on average where the range fills a quarter of the network.
    assert mixings <= 24 * 3 * 6 * 4


def test_a_block_size_belongs_to_the_block_order():
    for kind, block in ((OrderKind.BLOCK_SHUFFLE, 0), (OrderKind.SHUFFLE, 4)):
        with pytest.raises(ValueError, match="block_items belongs to the order block_shuffle"):
            Order(length=9, seed=0, kind=kind, block_items=block)
