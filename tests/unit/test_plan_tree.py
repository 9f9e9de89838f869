"""The tree of slots: one bracketing for a number of slots, whoever computes which of them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.plan.batch import BatchPlan
from elastic.plan.tree import Leaf, Part, Spread, leaves_of, parts_of, sharings, told


def bracketed(part):
    """The sum as text: what is added to what."""
    if part.stop - part.start == 1:
        return str(part.start)
    left, right = part.halves
    return f"({bracketed(left)}+{bracketed(right)})"


def test_the_brackets_of_five():
    assert bracketed(Part(0, 5)) == "(((0+1)+(2+3))+4)"
    assert [bracketed(part) for part in parts_of(range(1, 5), leaves=5)] == ["1", "(2+3)", "4"]
    with pytest.raises(ValueError, match="slot 3 alone"):
        _ = Part(3, 4).halves


def test_every_second_slot_accumulates_into_its_neighbour():
    found = leaves_of(Part(0, 4))
    assert found[1] == Leaf(base=Part(0, 1), lefts=(), result=Part(0, 2))
    assert found[3] == Leaf(base=Part(2, 3), lefts=(Part(0, 2),), result=Part(0, 4))


def run_rank(spread, rank):
    """Do what the leaves say, with texts for gradients."""
    sums = {}
    for slot, leaf in spread.work(rank).items():
        total = f"({sums.pop(leaf.base)}+{slot})" if leaf.base else str(slot)
        for left in leaf.lefts:
            total = f"({sums.pop(left)}+{total})"
        sums[leaf.result] = total
    return sums


@given(batch=st.integers(1, 80), micro=st.integers(1, 7), world=st.integers(1, 12), left=st.integers(1, 100))
@settings(deadline=None, max_examples=150)
def test_any_ranks_add_up_the_same_tree(batch, micro, world, left):
    plan = BatchPlan(global_batch_size=batch, micro_batch_size=min(micro, batch), total_samples=left)
    spread = Spread(plan.spread(0, world_size=world))
    occupied = -(-min(batch, left) // plan.micro_batch_size)
    assert [slot for own in spread.ranks for slot in own] == list(range(occupied))
    for rank, own in enumerate(spread.ranks):
        spans = plan.micro_batches(0, world_size=world, rank=rank)
        assert [span.slot for span in spans] == list(own), "the loader brings what the tree awaits"
    found = {}
    for rank in range(world):
        sums = run_rank(spread, rank)
        assert tuple(sums) == spread.parts(rank)
        found |= sums

    def combined(part):
        if part in found:
            return found[part]
        left_half, right_half = part.halves
        return f"({combined(left_half)}+{combined(right_half)})"

    assert combined(Part(0, spread.leaves)) == bracketed(Part(0, spread.leaves))


def test_what_world_sizes_make_of_eight_slots():
    found = {one.world_size: one for one in sharings(8, world_sizes=range(1, 10))}
    assert [found[size].most_parts for size in (1, 2, 3, 4, 8)] == [1, 1, 2, 1, 1]
    assert found[3].most_slots == 3
    assert found[3].idle == pytest.approx(1 / 9)
    assert found[9].idle == pytest.approx(1 / 9), "the ninth has nothing to do"


def test_the_line_that_is_told_at_the_start():
    line = told(sharings(6, world_sizes=[2, 4]), slots=6, exact=True)
    assert line == "a step is 6 micro-batches; by workers: 2: 3 each, 0% idle, 2 sums; 4: 2 each, 25% idle"
    assert "sums" not in told(sharings(6, world_sizes=[2, 4]), slots=6, exact=False)
