"""Packing: every token once, and losses that do not depend on how samples were packed, cut or shared out."""

import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from elastic.checkpoint.restored import Restored
from elastic.data.packing import pack
from elastic.distributed.group import Alone
from elastic.errors import DataError
from elastic.session.source import DataSource
from tests.harness.ranks import run_tensor_ranks
from tests.harness.training import train

WORDS = 7


@settings(deadline=None, max_examples=60)
@given(lengths=st.lists(st.integers(0, 25), min_size=1, max_size=12), row=st.integers(1, 12))
def test_every_token_is_packed_once_and_in_its_order(lengths, row):
    sequences, at = [], 1
    for length in lengths:
        sequences.append(torch.arange(at, at + length))
        at += length
    packed = pack(sequences, length=row)
    assert packed.tokens.shape[1] == row
    assert sorted(packed.tokens[packed.segments > 0].tolist()) == list(range(1, at))
    assert (packed.tokens[packed.segments == 0] == 0).all()
    for tokens, segments, positions in zip(*packed, strict=True):
        for number in range(1, int(segments.max()) + 1):
            piece = tokens[segments == number]
            assert piece.diff().eq(1).all(), "a piece is a stretch of one sequence"
            assert positions[segments == number].tolist() == list(range(len(piece)))


def test_what_is_no_sequence_is_refused():
    with pytest.raises(DataError, match=r"sample 1 of a micro-batch has shape \[2, 2\]"):
        pack([torch.zeros(3), torch.zeros(2, 2)], length=4)


class Texts:
    """Sequences of 0 to 9 tokens."""

    def __len__(self):
        return 53

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(index)
        return torch.randint(0, WORDS, (index * 5 % 10,), generator=draw)


def token_loss(net, packed):
    """Each token tells a class of three from itself alone, so that its neighbours in the row make no difference."""
    tokens = packed.tokens[packed.segments > 0]
    losses = F.cross_entropy(net(F.one_hot(tokens % 6, 6).double()), tokens % 3, reduction="none")
    return losses.sum(), torch.tensor(len(tokens))


def run_of(group, *, row, **options):
    source = DataSource(dataset=Texts(), collate_fn=functools.partial(pack, length=row))
    return train(group, data=source, loss=token_loss, steps=16, **options)


def test_losses_do_not_depend_on_the_packing_or_the_world():
    expected = run_of(Alone(), row=9)
    for row in (4, 30):
        assert run_of(Alone(), row=row).losses == pytest.approx(expected.losses, rel=1e-12)
    for size in (2, 3):
        for run in run_tensor_ranks(size, lambda group: run_of(group, row=9)):
            assert run.losses == pytest.approx(expected.losses, rel=1e-12)
            assert torch.allclose(run.parameters, expected.parameters, rtol=0, atol=1e-12)


def test_the_position_counts_samples_before_packing():
    whole = run_of(Alone(), row=9)
    assert [(event.start, event.stop) for event in whole.events] == [(at, at + 10) for at in range(0, 160, 10)]
    middle = whole.events[6]
    state = Restored(reason="a test", iteration=7, consumed_samples=middle.stop, run_digest=middle.run_digest)
    rest = run_of(Alone(), row=9, restored=state)
    assert [event.run_digest for event in rest.events] == [event.run_digest for event in whole.events[7:]]


def test_micro_batches_of_nothing_weigh_nothing():
    """A micro-batch whose samples are all of zero length is used like any other, with no weight."""

    class MostlyEmpty(Texts):
        def __getitem__(self, index):
            return super().__getitem__(index)[: 9 if index % 3 == 0 else 0]

    source = DataSource(dataset=MostlyEmpty(), collate_fn=functools.partial(pack, length=5))
    sizes = {"steps": 5, "micro_batch_size": 1, "global_batch_size": 25}
    runs = run_tensor_ranks(3, lambda group: train(group, data=source, loss=token_loss, **sizes))
    assert sum(event.step_samples for event in runs[0].events) == 125
    assert all(math.isfinite(loss) for loss in runs[0].losses)
