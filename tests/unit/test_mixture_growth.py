"""A mixture whose parts get more items between two starts: each part finishes its epoch, then uses all of its items."""

import json
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import elastic
from elastic.checkpoint.restored import Restored
from elastic.distributed.group import Alone
from elastic.events import Notice
from elastic.history import audit_run
from elastic.plan.data_order import Data, DataOrder, OnChange, succeed
from elastic.plan.mix import mix_pair
from elastic.plan.mixture import Mixture
from elastic.plan.order import Order, OrderKind
from tests.harness.ranks import run_tensor_ranks
from tests.harness.training import FEATURES, model, per_sample, told_of, train

WEIGHTS = (3, 1, 2)


def mixture(lengths, *, weights=WEIGHTS, kind=OrderKind.SHUFFLE):
    parts = tuple(Order(length=length, seed=number, kind=kind) for number, length in enumerate(lengths))
    return Mixture(parts=parts, weights=weights)


def grown(run, lengths, *, position, **options):
    now = Data(order=mixture(lengths, **options))
    return succeed(run, "", now, position=position, on_change=OnChange.APPEND)


def naive(changes, *, samples, seeds=range(3)):
    """By hand: each part has a pile of items, which is filled anew for each of its epochs from what there is then."""
    lengths, pattern, piles, epochs, found = [0, 0, 0], mixture((1, 1, 1))._pattern, [[], [], []], [0, 0, 0], []
    for sample in range(samples):
        lengths = changes.get(sample, lengths)
        part, _ = pattern[sample % len(pattern)]
        if not piles[part]:
            length, epoch = lengths[part], epochs[part]
            piles[part] = [Order(length=length, seed=seeds[part]).index(epoch * length + at) for at in range(length)][
                ::-1
            ]
            epochs[part] += 1
        found.append((part, piles[part].pop()))
    return found


def by_part(run, samples, lengths):
    """(part, item of it) of each sample, as a data set of so many items in its parts takes them."""
    found = []
    for sample in samples:
        index, part = run.index(sample), 0
        while index >= lengths[part]:
            index, part = index - lengths[part], part + 1
        found.append((part, index))
    return found


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_appended_again_and_again_it_is_what_is_done_by_hand(data):
    lengths = [data.draw(st.integers(1, 9)) for _ in WEIGHTS]
    run, position, changes, found = DataOrder.of(mixture(lengths)), 0, {0: list(lengths)}, []
    for _ in range(data.draw(st.integers(1, 5))):
        stop = position + data.draw(st.integers(0, 40))
        found += by_part(run, range(position, stop), lengths)
        position = stop
        more = [data.draw(st.integers(0, 4)) for _ in WEIGHTS]
        lengths = [length + extra for length, extra in zip(lengths, more, strict=True)]
        succession = grown(run, lengths, position=position)
        assert succession.refusal == ""
        assert bool(succession.told) == any(more)
        run, changes[position] = succession.order, list(lengths)
        assert DataOrder.from_plain(json.loads(json.dumps(run.to_plain()))) == run
        assert grown(run, lengths, position=position).order == run, "from here on it is simply the run's data"
    found += by_part(run, range(position, position + 60), lengths)
    assert found == naive(changes, samples=position + 60)


def test_what_is_not_the_same_with_more_is_refused():
    run = DataOrder.of(mixture((5, 5, 5)))
    for now in (
        mixture((6, 4, 5)),
        mixture((6, 5, 5), weights=(3, 1, 3)),
        mixture((6, 5, 5), kind=OrderKind.SEQUENTIAL),
        Mixture(parts=(*mixture((6, 5, 5)).parts, Order(length=3, seed=9)), weights=(*WEIGHTS, 1)),
        Order(length=40, seed=0),
    ):
        found = succeed(run, "", Data(order=now), position=7, on_change=OnChange.APPEND)
        assert "append is for the same data with more items at its end" in found.refusal


def test_the_parts_are_told_and_other_items_are_never_taken_for_the_same():
    """Items are numbered part after part: with other lengths the old numbers would be other items."""
    run, now = DataOrder.of(mixture((5, 5, 5))), Data(order=mixture((7, 5, 5)))
    found = succeed(run, "", now, position=7, on_change=OnChange.IGNORE)
    assert "hold [7, 5, 5] items; the run was using [5, 5, 5]: it cannot be ignored" in found.refusal
    assert succeed(
        run, "a", Data(order=mixture((5, 5, 5)), fingerprint="b"), position=7, on_change=OnChange.IGNORE
    ).told
    assert "append (" in succeed(run, "", now, position=7, on_change=OnChange.REFUSE).refusal


class Rows:
    """Items that say where they are from; `changed` have another content."""

    def __init__(self, part, length, *, changed=()):
        self.part, self.length, self.changed = part, length, changed

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.full((FEATURES,), 100.0 * (index in self.changed) + index), self.part


def mixed(*lengths, changed=()):
    parts = [Rows(part, length, changed=changed if part == 1 else ()) for part, length in enumerate(lengths)]
    return elastic.MixedDataset(parts, weights=WEIGHTS)


@pytest.fixture
def start(tmp_path, monkeypatch):
    """One start of a run; the (part, item) pairs that its steps used, in order."""
    monkeypatch.setattr(sys, "argv", ["train.py"])

    def start(data, *, until, **overrides):
        given = {"global_batch_size": 7, "micro_batch_size": 3, "steps": until, "save_path": str(tmp_path / "run")}
        used = []
        with elastic.Session(environ={}, **{**given, **overrides}) as run:
            net = run.parallelize(model())
            run.track(model=net)
            for step in run.steps(data):
                with step:
                    for x, part in step.micro_batches():
                        step.backward(per_sample(net, (x, part)))
                        used += zip(part.tolist(), x[:, 0].int().tolist(), strict=True)
        return used

    return start


def test_a_run_goes_on_with_more_items(start, tmp_path):
    used = start(mixed(5, 4, 6), until=4)
    used += start(mixed(8, 4, 9), until=9, on_change="append")
    used += start(mixed(8, 4, 9), until=14)
    assert used == naive({0: [5, 4, 6], 28: [8, 4, 9]}, samples=98, seeds=[mix_pair(0, part) for part in range(3)])
    found = audit_run(tmp_path / "run")
    assert found.exact
    assert found.samples == 98
    texts = [event.text for event in told_of(tmp_path, Notice)]
    assert any("each part finishes its epoch on the items that this began with" in text for text in texts)


def test_a_part_whose_first_items_changed_is_not_appended_to(start, caplog):
    start(mixed(5, 4, 6), until=4)
    with pytest.raises(SystemExit) as ended:
        start(mixed(8, 4, 6, changed=(2,)), until=9, on_change="append")
    assert ended.value.code == 64
    assert "but of the first [5, 4, 6] of its parts some changed" in caplog.text


def test_ranks_of_another_world_go_on_alike():
    """Three ranks, none with equal shares, take up what one began, with more items than it had."""
    meta = train(Alone(), data=mixed(5, 4, 6), steps=3).course.save_meta()
    saved = Restored(reason="a test", iteration=3, consumed_samples=30, run_digest=meta.run_digest, data=meta.data)
    options = {"data": mixed(8, 4, 9), "restored": saved, "steps": 9, "on_change": "append"}
    alone = train(Alone(), **options)
    expected = step_digests(alone)
    assert len(expected) == 6
    for run in run_tensor_ranks(3, lambda group: train(group, **options)):
        assert step_digests(run) == expected


def step_digests(run):
    return [(event.stop, event.step_digest) for event in run.events]
