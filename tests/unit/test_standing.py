"""Whose state all go on from, decided from what the ranks have; and the digest that tells equal states from others."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from elastic.checkpoint.handover import content, routes
from elastic.checkpoint.layout import CommitRecord
from elastic.checkpoint.standing import Choice, Standing, choose
from elastic.checkpoint.state import buffer_names, capture
from tests.harness.checkpoints import make_run

HERE = Standing(lineage="line", generation=3, iteration=25, consumed_samples=200, run_digest=1, content=77, durable=20)
RECORD = CommitRecord(iteration=20, lineage="line", manifest_digest="d", generation=3, consumed_samples=160)
BEHIND = replace(HERE, iteration=24, consumed_samples=192, run_digest=2, content=5)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_the_newest_wins_and_the_others_get_it():
    found = choose([BEHIND, None, HERE, HERE], record=RECORD)
    assert found.standing == HERE
    assert (found.sources, found.behind, found.differ) == ((2, 3), (0, 1), ())
    assert found.reason == "2 of 4 workers stand at step 25"
    assert Choice.from_plain(found.to_plain()) == found


def test_the_newest_generation_wins_over_more_steps():
    left = replace(HERE, generation=2, iteration=90, consumed_samples=720)
    assert choose([left, HERE], record=None).standing == HERE


def test_who_is_at_the_same_point_needs_nothing_whatever_its_generation():
    earlier = replace(HERE, generation=2)
    found = choose([earlier, HERE], record=None)
    assert (found.sources, found.behind) == ((0, 1), ())


def test_other_bits_at_the_same_point_are_a_fault_and_the_lowest_rank_is_believed():
    odd = replace(HERE, content=78)
    found = choose([HERE, odd, HERE], record=RECORD)
    assert (found.sources, found.behind, found.differ) == ((0, 2), (1,), (1,))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"lineage": "other"}, "in lineage other, not line"),
        ({"generation": 2}, "others went on in generation 3"),
        ({"iteration": 19}, "before the committed 20"),
    ],
)
def test_what_must_not_be_gone_on_from(change, reason):
    found = choose([replace(HERE, **change), None], record=RECORD)
    assert found.standing is None
    assert reason in found.reason
    both = choose([replace(HERE, **change), BEHIND], record=RECORD)
    assert both.standing == BEHIND


def test_nobody_stands():
    assert choose([None, None], record=RECORD).reason == "no worker has kept its state"
    assert choose([None, HERE], record=None).sources == (1,), "nothing was committed that it could have left"


def test_the_work_is_shared_out():
    assert routes(sources=(1, 4), behind=(0, 2, 3)) == [(1, 0), (4, 2), (1, 3)]


def test_any_bit_changes_the_digest_and_nothing_else_does():
    run = make_run().step(3)
    names = buffer_names(run.tracked)

    def digest():
        return content(capture(run.tracked), without=names)

    before = digest()
    assert digest() == before
    assert {"norm.running_mean", "norm.num_batches_tracked"} <= names
    run.tracked["model"].norm.running_mean.add_(1.0)
    assert digest() == before, "statistics of a rank's own samples may differ"
    tensors = [*run.tracked["model"].parameters()]
    tensors += [value for state in run.tracked["optimizer"].state.values() for value in state.values()]
    for tensor in tensors:
        bits = tensor.detach()[(-1,) * tensor.dim()].view(torch.int32)
        bits.bitwise_xor_(1)
        assert digest() != before
        bits.bitwise_xor_(1)
    assert digest() == before
    run.tracked["optimizer"].param_groups[0]["lr"] *= 2
    assert digest() != before


def test_values_in_each_others_places_are_another_state():
    run = make_run().step(1)
    before = content(capture(run.tracked))
    body = run.tracked["model"].body
    with torch.no_grad():
        body.bias[:2] = body.bias[:2].flip(0).clone()
        first, second = body.bias.clone(), run.tracked["model"].norm.bias.clone()
        body.bias.copy_(second)
        run.tracked["model"].norm.bias.copy_(first)
    assert content(capture(run.tracked)) != before
