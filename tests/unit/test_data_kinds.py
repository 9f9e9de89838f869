"""What a run can read besides one map-style data set: mixtures, streams, options of loaders, evaluation sets."""

import random
import sys

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import elastic
from elastic.config.load import with_overrides
from elastic.config.model import Settings
from elastic.data.fetch import reseed
from elastic.data.stream import ShardStream, SlotReader, SlotState, StreamFetcher
from elastic.distributed.group import Alone
from elastic.errors import DataError, UsageError
from elastic.history import audit_run
from elastic.plan.data_order import DataOrder
from elastic.plan.order import Order, OrderKind
from elastic.plan.stream import StreamOrder
from elastic.session.evaluation import evaluate
from elastic.session.source import DataSource, order_of
from tests.harness.datasets import Drawing, draw_shard
from tests.harness.loading import make
from tests.harness.ranks import run_tensor_ranks
from tests.harness.training import FEATURES, dataset, model, per_sample, train


@pytest.fixture
def session(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py"])

    def make(**overrides):
        given = {"steps": 6, "global_batch_size": 10, "micro_batch_size": 4, "save_path": str(tmp_path / "run")}
        return elastic.Session(environ={}, **{**given, **overrides})

    return make


def loop(session, data, *, until=None):
    """Train, and leave after so many steps; the batches that were used."""
    seen = []
    with session as run:
        net = run.parallelize(model())
        run.track(model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.01))
        for step in run.steps(data(run) if callable(data) else data):
            with step:
                for batch in step.micro_batches():
                    step.backward(per_sample(net, batch[:2]))
                    seen.append(plain(batch))
            if until is not None and step.iteration >= until:
                break
    return seen


def plain(value):
    return value.tolist() if isinstance(value, torch.Tensor) else [plain(each) for each in value]


class Counting:
    """A shard with a state of its own: samples that no index leads to."""

    def __init__(self, shard, epoch, *, length=5, state=None):
        self.shard, self.epoch, self.length, self.at, self.state = shard, epoch, length, 0, state

    def __iter__(self):
        return self

    def __next__(self):
        if self.at >= self.length:
            raise StopIteration
        self.at += 1
        draw = torch.rand(FEATURES)
        return draw, self.shard % 3, (self.shard, self.epoch, self.at)

    def state_dict(self):
        return {"at": self.at} if self.state is None else self.state

    def load_state_dict(self, state):
        self.at = state["at"]


class Stateless(Counting):
    state_dict = load_state_dict = None


@pytest.mark.parametrize("kind", [Counting, Stateless])
def test_a_stream_goes_on_where_it_was_saved(kind, session, tmp_path):
    stream = ShardStream(kind, shards=4)
    whole = loop(session(save_path=str(tmp_path / "whole")), stream)
    assert loop(session(), stream, until=2) + loop(session(), stream) == whole
    found = audit_run(tmp_path / "run")
    assert found.exact
    assert found.samples == 60


def test_each_shard_is_read_in_order_epoch_after_epoch(session):
    seen = loop(session(steps=9), ShardStream(Counting, shards=4))
    places = [place for batch in seen for place in zip(*batch[2], strict=True)]
    for shard in range(4):
        own = [(epoch, at) for number, epoch, at in places if number == shard]
        assert own == [(number // 5, number % 5 + 1) for number in range(len(own))]
    assert {shard for shard, _, _ in places} == set(range(4))


def test_a_state_is_loaded_and_not_read_again():
    """Restoring a shard with a state of its own asks for no sample that was used."""
    order, drawn = StreamOrder(global_batch_size=4, micro_batch_size=2), []

    class Watched(Counting):
        def __next__(self):
            drawn.append(self.at)
            return super().__next__()

    stream = ShardStream(Watched, shards=2)

    def fetcher(states):
        return StreamFetcher(stream, order=order, seed=0, collate=list, states=states)

    *_, state = fetcher({}).__getitems__([(0, order.index(0)), (1, order.index(1))])
    drawn.clear()
    second = fetcher({0: state}).__getitems__([(4, order.index(4)), (5, order.index(5))])
    assert drawn == [2, 3]
    drawn.clear()
    assert fetcher({}).__getitems__([(4, order.index(4)), (5, order.index(5))])[:2] == second[:2]
    assert drawn == [0, 1, 2, 3], "without a state what came before is read again"


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"at": {1, 2}}, "is not JSON: Object of type set"),
        ({"at": (1, 2)}, "comes back as something else"),
        ({1: 2}, "comes back as something else"),
        ({"at": float("nan")}, "is not JSON"),
    ],
)
def test_a_state_that_is_no_json_is_refused(state, words):
    order = StreamOrder(global_batch_size=4, micro_batch_size=4)
    stream = ShardStream(lambda shard, epoch: Counting(shard, epoch, state=state), shards=1)
    reader = SlotReader(stream, slot=0, order=order, seed=0, state=SlotState())
    reader.next()
    with pytest.raises(DataError, match=words):
        reader.state()


def test_shards_that_hold_nothing_or_less_than_before_are_refused():
    order = StreamOrder(global_batch_size=4, micro_batch_size=4)

    def reader(open_shard, state):
        return SlotReader(ShardStream(open_shard, shards=2), slot=0, order=order, seed=0, state=state)

    with pytest.raises(DataError, match=r"shards \[0, 1\] of slot 0 hold no samples"):
        reader(lambda shard, epoch: [], SlotState()).next()
    with pytest.raises(DataError, match="shard 0 ended after 2 samples; it had given 3 before"):
        reader(lambda shard, epoch: [1, 2], SlotState(read=3, item=3)).next()
    with pytest.raises(ZeroDivisionError) as caught:
        reader(lambda shard, epoch: (1 // 0 for _ in range(1)), SlotState()).next()
    assert caught.value.__notes__ == ["while reading shard 0, sample 0 of epoch 0"]


def test_too_few_shards_and_a_batch_that_grows_are_refused(session, caplog):
    cases = (
        ({}, "the stream has 2 shards, the global batch 3 slots"),
        ({"batch": "per_rank", "rank_batch_size": 4}, "belongs to the slots"),
    )
    for overrides, words in cases:
        with pytest.raises(SystemExit) as ended:
            loop(session(**overrides), ShardStream(Counting, shards=2))
        assert ended.value.code == 64
        assert words in caplog.text
    with pytest.raises(DataError, match="at least one shard"):
        ShardStream(Counting, shards=0)


def test_a_slots_micro_batches_stay_with_one_process():
    """Of 4 slots, 3 processes would get each slot in turn: 2 are used."""
    order = StreamOrder(global_batch_size=10, micro_batch_size=3)
    loader = make(ShardStream(draw_shard(3), shards=4), order=order, num_workers=3)
    assert loader._own_transport().num_workers == 2
    loader.move(position=0, world_size=9, rank=8)
    assert loader._own_transport().num_workers == 3, "no slots, no processes to speak of"


def test_a_mixture_resumes_and_keeps_its_shares(session, tmp_path):
    x, y = dataset().tensors

    def part(number, length):
        return torch.utils.data.TensorDataset(x[:length], y[:length], torch.full((length,), number))

    mixed = elastic.MixedDataset([part(0, 30), part(1, 7), part(2, 50)], weights=[0.5, 0.2, 0.3])
    whole = loop(session(save_path=str(tmp_path / "whole")), mixed)
    assert loop(session(), mixed, until=2) + loop(session(), mixed) == whole
    numbers = [number for batch in whole for number in batch[2]]
    assert [numbers.count(part) for part in range(3)] == [30, 12, 18]
    assert audit_run(tmp_path / "run").exact


@pytest.mark.parametrize(
    ("parts", "weights", "words"),
    [
        ([[1], [2]], [1], "a mixture of 2 data sets needs as many weights; got 1"),
        ([[1], []], [1, 1], "part 1 of the mixture is empty"),
        ([[1], [2]], [1, 0], "weights must be positive numbers"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(parts, weights, words):
    with pytest.raises(DataError, match=words):
        elastic.MixedDataset(parts, weights=weights)


def test_items_beyond_a_mixture():
    mixed = elastic.MixedDataset([[1, 2], [3]], weights=[1, 1])
    assert [mixed[index] for index in range(3)] == [1, 2, 3]
    for index in (3, -1):
        with pytest.raises(IndexError, match=r"has items 0\.\.2"):
            mixed[index]


def test_the_options_of_a_loader_reach_it(session):
    def upside_down(items):
        batch = torch.utils.data.default_collate(items)
        return [-batch[0], batch[1]]

    plain = loop(session(steps=1, enable_save=False), dataset())
    turned = loop(session(steps=1, enable_save=False), lambda run: run.loader(dataset(), collate_fn=upside_down))
    assert [[[-value for value in row] for row in batch[0]] for batch in plain] == [batch[0] for batch in turned]
    with session(steps=1, num_workers=1) as run:
        assert run.loader(dataset()).transport.num_workers == 1
        assert run.loader(dataset(), num_workers=0, pin_memory=True).transport.pin_memory


class Rows:
    """An evaluation set of 23 items, for micro-batches of 5."""

    def __len__(self):
        return 23

    def __getitem__(self, index):
        return torch.randn(FEATURES, generator=torch.Generator().manual_seed(index)), index % 3


def test_an_evaluation_uses_every_item_once_and_says_the_same_at_any_world_size():
    net, rows = model(), DataSource(dataset=Rows())

    def work(group):
        items = []

        def measure(batch):
            x, y = batch
            items.extend(y.tolist())
            losses = F.cross_entropy(net(x.double()), y, reduction="none")
            return {"loss": (losses.sum(), len(y)), "right": ((net(x.double()).argmax(1) == y).sum(), len(y))}

        return evaluate(rows, measure, group=group, device="cpu", batch_size=5, seed=0), items

    alone, items = work(Alone())
    assert items == [index % 3 for index in range(23)]
    x, y = (torch.stack([torch.as_tensor(Rows()[at][part]) for at in range(23)]) for part in (0, 1))
    assert alone["loss"] == pytest.approx(F.cross_entropy(net(x.double()), y).item(), rel=1e-12)
    assert alone["right"] == (net(x.double()).argmax(1) == y).double().mean().item()
    for size in range(2, 9):
        results = run_tensor_ranks(size, work)
        assert all(found == alone for found, _ in results), "to the last bit"
        assert sum(len(own) for _, own in results) == 23


def test_an_evaluation_that_ranks_do_differently_is_refused(session):
    with session() as run:
        names = iter("ab" * 9)
        with pytest.raises(UsageError, match="must be measured alike"):
            run.evaluate(Rows(), lambda batch: {next(names): (1.0, 1)})
        with pytest.raises(UsageError, match="the weight of 'x' over the whole data set is 0"):
            run.evaluate(Rows(), lambda batch: {"x": (1.0, 0)})
        with pytest.raises(DataError, match="has no end"):
            run.evaluate(ShardStream(Counting, shards=4), lambda batch: {})
        assert run.evaluate(Rows(), lambda batch: {"n": (len(batch[1]), 1)})["n"] == pytest.approx(23 / 6)


def test_augmentation_belongs_to_the_sample_at_any_world_size():
    """The parameters are those of a world of one though every sample draws at random."""

    class Noisy(Rows):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return x + torch.randn(FEATURES) * random.random(), y

    expected = train(Alone(), data=Noisy(), steps=8)
    for size in (2, 5):
        for run in run_tensor_ranks(size, lambda group: train(group, data=Noisy(), steps=8)):
            assert torch.allclose(run.parameters, expected.parameters, rtol=0, atol=1e-9)


class Restless(Rows):
    """Its items draw from all three generators."""

    def __getitem__(self, index):
        np.random.rand()
        return super().__getitem__(index)[0] + torch.randn(FEATURES) * random.random(), index % 3


def test_loading_leaves_the_callers_randomness_alone(session):
    """What a training draws does not depend on what its data draws, and an evaluation leaves all as it was."""

    def draws():
        return torch.rand(2).tolist(), random.random(), np.random.rand()

    def train_on(data):
        found = []
        with session(steps=2, enable_save=False) as run:
            net = run.parallelize(model())
            for step in run.steps(data):
                with step:
                    for batch in step.micro_batches():
                        found.append(draws())
                        step.backward(per_sample(net, batch))
                found.append(draws())
        return found

    assert train_on(Restless()) == train_on(Rows())
    reseed(5)
    expected = draws()
    reseed(5)
    with session() as run:
        reseed(5)
        run.evaluate(Restless(), lambda batch: {"n": (1.0, 1)})
        assert draws() == expected


def test_nodes_with_different_data_are_refused():
    def work(group):
        rows = Drawing(9 if group.rank == 1 else 10)
        return train(group, data=rows, steps=1)

    with pytest.raises(DataError, match="rank 1 sees other data than rank 0"):
        run_tensor_ranks(3, work)


def test_settings_of_the_order_reach_it(session, tmp_path):
    seen = loop(session(steps=1, order="block_shuffle", block_items=10), dataset())
    assert len(seen) == 3
    given = with_overrides(Settings(), {"order": "block_shuffle", "block_items": 10})
    blocks = Order(length=101, seed=0, kind=OrderKind.BLOCK_SHUFFLE, block_items=10)
    assert order_of(dataset(), given, None) == blocks
    assert audit_run(tmp_path / "run").exact
    assert DataOrder.of(blocks).length == 101
