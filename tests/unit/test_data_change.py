"""Changed data between two starts of a run: noticed, refused with its choices, and each choice does what it says."""

import itertools
import json
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Dataset

import elastic
from elastic.events import Notice, OrderChosen, StepCommitted, read_records
from elastic.history import audit_run
from elastic.plan.data_order import Data, DataOrder, OnChange, Segment, succeed
from elastic.plan.mixture import Mixture
from elastic.plan.order import Order, OrderKind
from elastic.plan.stream import StreamOrder
from tests.harness.training import FEATURES, model, per_sample


class Rows(Dataset):
    """Items that are known by their number and by a content that may change."""

    def __init__(self, length, *, content=0.0, changed=()):
        self.length, self.content, self.changed = length, content, changed
        self.fetched = []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if not 0 <= index < self.length:
            raise IndexError(index)
        self.fetched.append(index)
        content = self.content + (index in self.changed)
        return torch.full((FEATURES,), content), index % 3


@pytest.fixture
def start(tmp_path, monkeypatch):
    """One start of the run; returns the items that its steps used, in order."""
    monkeypatch.setattr(sys, "argv", ["train.py"])

    def start(data, *, until, **overrides):
        overrides = {"global_batch_size": 10, "micro_batch_size": 10, "steps": until, **overrides}
        with elastic.Session(environ={}, save_path=str(tmp_path / "run"), **overrides) as run:
            net = run.parallelize(model())
            optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
            run.track(model=net, optimizer=optimizer)
            used = []
            for step in run.steps(data):
                with step:
                    for batch in step.micro_batches():
                        step.backward(per_sample(net, batch))
                    optimizer.step()
                used += [index for _, index in step.used]
        return used

    return start


def refusal(start, caplog, data, **options):
    with pytest.raises(SystemExit) as ended:
        start(data, **options)
    assert ended.value.code == 64
    return caplog.text


def notices(tmp_path):
    return [r.event.text for r in read_records(tmp_path / "run" / "events") if isinstance(r.event, Notice)]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (Rows(30), "holds 30 items; the run was using 25"),
        (Rows(20), "holds 20 items; the run was using 25"),
        (Rows(25, content=1.0), "25 items as before, but their content is another"),
    ],
)
def test_other_data_is_refused_with_the_choices(start, caplog, data, found):
    start(Rows(25), until=4)
    text = refusal(start, caplog, data, until=8)
    assert found in text
    for choice in ("append", "restart", "ignore"):
        assert choice in text


def test_another_seed_or_kind_of_order_is_other_data_too(start, caplog):
    start(Rows(25), until=4)
    text = refusal(start, caplog, Rows(25), until=8, seed=1)
    assert "order of the data is now kind shuffle, length 25, seed 1" in text
    assert "kind sequential" in refusal(start, caplog, Rows(25), until=8, order="sequential")


def test_the_same_data_goes_on(start, tmp_path):
    used = start(Rows(25), until=4) + start(Rows(25), until=8)
    order = Order(length=25, seed=0)
    assert used == [order.index(sample) for sample in range(80)]
    assert notices(tmp_path) == []


def test_append_finishes_the_epoch_on_what_it_began_with(start, tmp_path):
    used = start(Rows(25), until=4)
    used += start(Rows(30), until=8, on_change="append")
    used += start(Rows(30), until=12)  # from here on the grown data is simply the run's data
    epochs = [used[:25], used[25:50], used[50:80], used[80:110]]
    assert [sorted(epoch) for epoch in epochs] == [list(range(25))] * 2 + [list(range(30))] * 2
    assert "appended; from sample 50, where epoch 2 begins, all 30 items are used" in notices(tmp_path)[0]
    found = audit_run(tmp_path / "run")
    assert found.exact
    assert found.samples == 120


def test_append_is_not_for_data_whose_first_items_changed(start, caplog):
    start(Rows(25), until=4)
    text = refusal(start, caplog, Rows(30, changed=range(25)), until=8, on_change="append")
    assert "but the first 25 changed" in text


def test_append_is_not_for_data_that_shrank(start, caplog):
    start(Rows(25), until=4)
    assert "append is for the same data with more" in refusal(start, caplog, Rows(9), until=8, on_change="append")


def test_restart_begins_an_epoch_over_the_new_data(start, tmp_path):
    used = start(Rows(25), until=4)
    used += start(Rows(12, content=2.0), until=7, on_change="restart")
    used += start(Rows(12, content=2.0), until=8)
    assert [sorted(used[40:52]), sorted(used[52:64])] == [list(range(12))] * 2
    assert "epoch 2 begins at sample 40; 10 items of the epoch before it are never used" in notices(tmp_path)[0]
    assert audit_run(tmp_path / "run").exact


def test_ignore_goes_on_as_before(start, tmp_path, caplog):
    used = start(Rows(25), until=4)
    used += start(Rows(25, content=1.0), until=6, on_change="ignore")
    used += start(Rows(40, content=1.0), until=8, on_change="ignore")
    order = Order(length=25, seed=0)
    assert used == [order.index(sample) for sample in range(80)]
    assert all("ignored, the order stays that of 25 items" in text for text in notices(tmp_path))
    assert audit_run(tmp_path / "run").exact
    assert "cannot be ignored, since the order names items up to 25" in refusal(
        start, caplog, Rows(9, content=1.0), until=9, on_change="ignore"
    )


def test_the_data_sets_own_fingerprint_counts(start, caplog):
    def named(fingerprint):
        rows = Rows(25)
        rows.fingerprint = fingerprint
        return rows

    start(named("2024"), until=2)
    start(named("2024"), until=4)
    assert "their content is another" in refusal(start, caplog, named("2025"), until=6)


def test_without_probes_nothing_is_fetched_before_the_first_step(start):
    rows = Rows(25)
    start(rows, until=1, probe_items=0)
    assert len(rows.fetched) == 10


def test_a_data_set_that_is_another_one_each_time_is_refused(start, caplog):
    class Counting(Rows):
        count = itertools.count()

        def __getitem__(self, index):
            return torch.full((FEATURES,), float(next(self.count))), 0

    assert "is another one each time that it is fetched" in refusal(start, caplog, Counting(25), until=2)
    start(Counting(25), until=2, probe_items=0)


def test_draws_from_seeded_generators_are_no_change(start):
    class Augmented(Rows):
        def __getitem__(self, index):
            return super().__getitem__(index)[0] + torch.rand(FEATURES), 0

    start(Augmented(25), until=2)
    start(Augmented(25), until=4)


def test_orders_of_another_version_are_not_continued(start, caplog, tmp_path, monkeypatch):
    start(Rows(25), until=2)
    monkeypatch.setattr("elastic.plan.data_order.ORDER_VERSION", 2)
    assert "the order is of version 1, and 2 is computed here" in refusal(start, caplog, Rows(25), until=4)


def test_a_last_step_that_the_order_does_not_give_stops_the_resume(start, caplog, monkeypatch):
    """As if the saved position were off by one: the digest of what was really used tells."""
    start(Rows(25), until=2)
    real = DataOrder.from_plain.__func__

    def shifted(cls, plain):
        first = Segment(start=0, first_epoch=0, order=Order(length=25, seed=5))
        return DataOrder(segments=(first, *real(cls, plain).segments[1:]))

    monkeypatch.setattr(DataOrder, "from_plain", classmethod(shifted))
    text = refusal(start, caplog, Rows(25), until=4, seed=5)
    assert "the last step before the save used samples 10 to 20 with the digest" in text


def test_the_order_is_told_in_full(start, tmp_path):
    start(Rows(25), until=4)
    start(Rows(30), until=8, on_change="append")
    told = [r.event for r in read_records(tmp_path / "run" / "events") if isinstance(r.event, OrderChosen)]
    assert [event.length for event in told] == [25, 30]
    assert len([r for r in read_records(tmp_path / "run" / "events") if isinstance(r.event, StepCommitted)]) == 8


ORDERS = [
    Order(length=7, seed=1),
    Order(length=9, seed=1, kind=OrderKind.SEQUENTIAL),
    Order(length=9, seed=1, kind=OrderKind.BLOCK_SHUFFLE, block_items=2),
    Mixture(parts=(Order(length=3, seed=0), Order(length=4, seed=1)), weights=(2, 1)),
    StreamOrder(global_batch_size=6, micro_batch_size=4),
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_every_order_comes_back_from_json(order):
    first = Segment(start=0, first_epoch=0, order=ORDERS[0])
    run = DataOrder(segments=(first, Segment(start=12, first_epoch=3, order=order)))
    back = DataOrder.from_plain(json.loads(json.dumps(run.to_plain())))
    assert back == run
    assert [back.index(sample) for sample in range(40)] == [run.index(sample) for sample in range(40)]
    with pytest.raises(ValueError, match="not an order of ours"):
        DataOrder.from_plain({"version": 1, "segments": [{}]})


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_appended_again_and_again_every_epoch_is_whole(data):
    run = DataOrder.of(Order(length=data.draw(st.integers(1, 12)), seed=3))
    length, position = run.length, 0
    for _ in range(data.draw(st.integers(1, 5))):
        position += data.draw(st.integers(0, 30))
        length += data.draw(st.integers(1, 5))
        now = Data(order=Order(length=length, seed=3))
        run = succeed(run, "", now, position=position, on_change=OnChange.APPEND).order
    sample, epoch = 0, 0
    while sample < position + 60:
        assert run.epoch_of(sample) == (epoch, 0)
        size = run.segment_of(sample).order.length
        assert sorted(run.index(sample + at) for at in range(size)) == list(range(size))
        sample, epoch = sample + size, epoch + 1


@pytest.mark.parametrize("change", list(OnChange))
def test_a_stream_stays_with_its_batch(change):
    saved = DataOrder.of(StreamOrder(global_batch_size=6, micro_batch_size=4))
    now = Data(order=StreamOrder(global_batch_size=8, micro_batch_size=4))
    found = succeed(saved, "", now, position=12, on_change=change)
    assert "keep both batch sizes, or start another run" in found.refusal
