"""The promise of a step: the same losses and the same parameters at every world size, whoever ran which micro-batch."""

from typing import NamedTuple

import pytest
import torch
from torch import nn

from elastic.checkpoint.restored import Restored as RestoredState
from elastic.data.audit import account
from elastic.distributed.group import Alone
from elastic.distributed.replicate import Replica
from elastic.errors import UsageError
from elastic.events import Record, Restored
from elastic.plan.order import Order
from elastic.plan.tree import Spread
from elastic.session.moving import to_device
from elastic.session.step import sum_and_weight
from tests.harness.ranks import run_tensor_ranks
from tests.harness.training import (
    CLASSES,
    FEATURES,
    SAMPLES,
    STEPS,
    course,
    dataset,
    model,
    per_sample,
    train,
    weighted,
)

WORLDS = [1, 2, 3, 4, 5]


def assert_equal(run, expected):
    assert run.losses == pytest.approx(expected.losses, rel=1e-9)
    assert torch.allclose(run.parameters, expected.parameters, rtol=0, atol=1e-9)


def gradients(replica, *micro_batches):
    """One step of a world of one: each micro-batch does what its function does."""
    replica.begin_step(Spread((range(len(micro_batches)),)))
    for slot, act in enumerate(micro_batches):
        replica.begin_round(slot, last=slot == len(micro_batches) - 1)
        act()
    replica.send()
    replica.reduce()


def naive(*, loss_of, weight_of, batch=10, total=400):
    """Another way to the same: plain torch, whole global batches, means taken by hand."""
    net, data = model(), dataset()
    order, optimizer, losses = Order(length=SAMPLES, seed=0), torch.optim.AdamW(net.parameters(), lr=0.02), []
    for start in range(0, total, batch):
        indices = torch.tensor([order.index(sample) for sample in range(start, min(start + batch, total))])
        x, y = (column[indices] for column in data.tensors)
        weights = weight_of(y)
        loss = (loss_of(net, (x, y)) * weights).sum() / weights.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, nn.utils.parameters_to_vector(net.parameters()).detach()


@pytest.mark.parametrize(
    ("loss", "weight_of"),
    [(per_sample, lambda y: torch.ones(len(y)).double()), (weighted, lambda y: (1 + y).double())],
)
def test_a_world_of_one_equals_plain_torch(loss, weight_of):
    run = train(Alone(), loss=loss)
    losses, parameters = naive(loss_of=per_sample, weight_of=weight_of)
    assert run.losses == pytest.approx(losses, rel=1e-9)
    assert torch.allclose(run.parameters, parameters, rtol=0, atol=1e-9)


@pytest.mark.parametrize("loss", [per_sample, weighted])
@pytest.mark.parametrize("size", WORLDS)
def test_every_world_size_gives_the_same(size, loss):
    expected = train(Alone(), loss=loss)
    runs = run_tensor_ranks(size, lambda group: train(group, loss=loss))
    assert len(runs[0].losses) == STEPS
    for run in runs:
        assert_equal(run, expected)
        assert torch.equal(run.parameters, runs[0].parameters), "replicas are bitwise equal"
    begun = Restored(tier="none", iteration=0, consumed_samples=0, seconds=0.0, reason="a test")
    records = [
        Record(time_s=number, node="n", rank=rank, generation=1, event=event)
        for rank, run in enumerate(runs)
        for number, event in enumerate([begun, *run.events])
    ]
    found = account(records, order=Order(length=SAMPLES, seed=0))
    assert found.exact
    assert found.samples == 400


@pytest.mark.parametrize("size", [2, 4])
def test_dropout_is_the_same_whoever_draws_it(size):
    expected = train(Alone(), dropout=0.5)
    assert expected.losses != train(Alone()).losses
    for run in run_tensor_ranks(size, lambda group: train(group, dropout=0.5)):
        assert_equal(run, expected)


def test_a_short_last_step_counts_as_what_it_holds():
    """A run resumed at sample 39 ends with a step of one sample, for which most ranks have no slot."""
    options = {"restored": RestoredState(reason="a test", iteration=3, consumed_samples=39)}
    expected = train(Alone(), **options)
    assert [event.step_samples for event in expected.events] == [10] * 36 + [1]
    for run in run_tensor_ranks(3, lambda group: train(group, **options)):
        assert_equal(run, expected)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_users_own_zero_grad_does_no_harm(set_to_none, when):
    def body(net, optimizer, step):
        if when == "before":
            optimizer.zero_grad(set_to_none=set_to_none)
        for batch in step.micro_batches():
            step.backward(per_sample(net, batch))
        optimizer.step()
        if when == "after":
            optimizer.zero_grad(set_to_none=set_to_none)

    for run in run_tensor_ranks(3, lambda group: train(group, body=body, steps=8)):
        assert_equal(run, train(Alone(), steps=8))


def test_one_collective_for_the_totals_and_one_for_each_type():
    def work(group):
        train(group, steps=5)
        return group.sums

    assert run_tensor_ranks(2, work) == [10, 10]


class TestReplica:
    def test_align_copies_rank_0s_parameters_and_buffers_of_any_type_and_layout(self):
        def work(group):
            net = nn.Module()
            net.weight = nn.Parameter(torch.full((3, 5), float(group.rank)).t())
            net.scalar = nn.Parameter(torch.tensor(float(group.rank)))
            for name, dtype in {
                "a": torch.int16,
                "b": torch.bool,
                "c": torch.float8_e4m3fn,
                "d": torch.bfloat16,
            }.items():
                net.register_buffer(name, torch.full((2,), float(group.rank)).to(dtype))
            net.register_buffer("empty", torch.empty(0))
            assert not net.weight.is_contiguous()
            Replica(net, group).align()
            return [value.double().sum().item() for value in net.state_dict().values()]

        assert run_tensor_ranks(3, work) == [[0.0] * 7] * 3

    def test_each_type_has_a_flat_gradient_of_its_own(self):
        net = nn.Module()
        net.narrow, net.wide = nn.Parameter(torch.ones(2).bfloat16()), nn.Parameter(torch.ones(3))

        def work(group):
            replica = Replica(net, group)
            replica.begin_step(Spread((range(1),)))
            replica.begin_round(0, last=True)
            (net.narrow.sum() + 2 * net.wide.sum()).backward()
            replica.send()
            replica.reduce()
            return group.sums

        assert run_tensor_ranks(1, work) == [2]

    def test_what_is_trained_may_change_between_steps(self):
        net = model()
        net[0].requires_grad_(False)
        replica = Replica(net, Alone())
        gradients(replica, lambda: None)
        assert net[0].weight.grad is None
        net[0].requires_grad_(True)
        net[3].requires_grad_(False)
        gradients(replica, lambda: None)
        assert net[0].weight.grad is not None
        assert net[3].weight.grad is None, "weight decay would go on moving it"

    @pytest.mark.parametrize("exact", [False, True])
    def test_a_gradient_that_the_job_replaced_is_what_it_meant(self, exact):
        net = model()
        replica = Replica(net, Alone(), exact=exact)

        def replace():
            net[0].weight.grad = torch.full_like(net[0].weight, 3.0)
            net[0].bias.grad = None

        gradients(replica, replace)
        replica.scale_(2.0)
        assert torch.equal(net[0].weight.grad, torch.full_like(net[0].weight, 6.0))
        assert torch.equal(net[0].bias.grad, torch.zeros_like(net[0].bias))


class TestMisuse:
    @pytest.fixture
    def step(self):
        net = model()
        return course().next_step(Alone(), (Replica(net, Alone()),), lambda: False)

    def test_break_leaves_a_step_that_cannot_be_committed(self, step):
        def body():
            with step:
                next(step.micro_batches())

        with pytest.raises(UsageError, match="without break"):
            body()
        assert not step.done

    def test_an_error_inside_is_not_covered_up(self, step):
        with pytest.raises(ZeroDivisionError), step:
            raise ZeroDivisionError
        assert not step.done

    def test_micro_batches_twice(self, step):
        def body():
            with step:
                for _ in range(2):
                    for batch in step.micro_batches():
                        step.backward(per_sample(model(), batch))

        with pytest.raises(UsageError, match="a second time"):
            body()

    def test_micro_batches_outside(self, step):
        with pytest.raises(UsageError, match="outside of `with step:`"):
            next(step.micro_batches())

    def test_no_weight_at_all(self, step):
        with pytest.raises(UsageError, match=r"weight of its whole batch is 0\.0"), step:
            list(step.micro_batches())

    @pytest.mark.parametrize(
        ("loss", "words"),
        [
            (torch.tensor(1.0), r"got shape \[\]\. Pass reduction='none'"),
            (torch.ones(2, 3), r"got shape \[2, 3\]"),
            ((torch.ones(2), 1.0), r"got a sum of shape \[2\]"),
            ((1.0, 1.0), "the sum a tensor"),
            ((torch.tensor(1.0),), "a tuple of 1"),
            (1.0, "got float"),
            (None, "got NoneType"),
        ],
    )
    def test_a_loss_of_the_wrong_shape(self, loss, words):
        with pytest.raises(UsageError, match=words):
            sum_and_weight(loss)

    def test_weights_may_be_tensors_or_numbers(self):
        assert sum_and_weight((torch.tensor(2.0), torch.tensor(3)))[1] == 3.0
        assert sum_and_weight((torch.tensor(2.0), 3))[1] == 3.0
        assert sum_and_weight(torch.ones(4))[1] == 4.0


def test_moving_a_batch_keeps_its_shape():
    class Encoding:
        def to(self, device):
            return f"moved to {device}"

    class Pair(NamedTuple):
        x: torch.Tensor
        name: str

    batch = {"a": [torch.ones(FEATURES), (torch.ones(CLASSES), 7)], "b": Pair(torch.ones(1), "n"), "c": Encoding()}
    assert to_device(batch, "cpu") is batch
    moved = to_device(batch, "meta")
    assert (moved["a"][0].device.type, moved["a"][1][0].device.type, moved["a"][1][1]) == ("meta", "meta", 7)
    assert isinstance(moved["b"], Pair)
    assert (moved["b"].x.device.type, moved["b"].name, moved["c"]) == ("meta", "n", "moved to meta")
