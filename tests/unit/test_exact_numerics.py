"""`numerics: exact`: every bit of parameters and optimizer state is the same at every world size."""

import pytest
import torch
from torch import nn

from elastic.distributed.buckets import lay_out
from elastic.distributed.group import Alone
from elastic.distributed.replicate import Replica
from elastic.errors import UsageError
from elastic.plan.tree import Spread
from tests.harness.exact_training import VARIANTS, train_exact
from tests.harness.ranks import run_tensor_ranks


@pytest.mark.parametrize(
    "variant", [*VARIANTS, {"twice": True}], ids=["float32", "autocast", "bfloat16", "eight slots", "two models"]
)
def test_the_same_bits_at_every_world_size(variant):
    alone = train_exact(Alone(), **variant)
    for size in (2,) if "global_batch_size" in variant else (3,) if variant else (2, 3, 5):
        assert run_tensor_ranks(size, lambda group: train_exact(group, **variant)) == [alone] * size


def test_more_ranks_than_slots_and_a_short_last_step():
    options = {"global_batch_size": 20, "steps": 3, "micro_batch_size": 9}
    alone = train_exact(Alone(), **options)
    assert run_tensor_ranks(5, lambda group: train_exact(group, **options)) == [alone] * 5


def test_plain_sums_differ_by_world_size():
    """Without the tree this training does tell world sizes apart: the tests above compare something."""
    alone, _ = train_exact(Alone(), strategy=Replica)
    found = {run_tensor_ranks(size, lambda group: train_exact(group, strategy=Replica))[0][0] for size in (2, 3)}
    assert len(found | {alone}) > 1


class Parallel(nn.Module):
    """Its second layer is used only when asked for."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x, *, both):
        return self.first(x) + self.second(x) if both else self.first(x)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_parameters_that_a_micro_batch_does_not_use(size):
    """Odd slots leave a layer out, so that its gradient is the sum of the even ones', at any world size."""
    draw = torch.Generator().manual_seed(2)
    xs = torch.randn(5, 4, 3, generator=draw)

    def work(group):
        net = Parallel()
        replica = Replica(net, group, exact=True)
        ranks = {1: [range(5)], 2: [range(3), range(3, 5)], 3: [range(2), range(2, 4), range(4, 5)]}[group.size]
        replica.begin_step(Spread(tuple(ranks)))
        for slot in ranks[group.rank]:
            replica.begin_round(slot, last=slot == ranks[group.rank][-1])
            net(xs[slot], both=slot % 2 == 0).sum().backward()
        replica.send()
        replica.reduce()
        return net.second.weight.grad.clone(), net.first.weight.grad.clone()

    def summed(slots):
        total = None
        for slot in slots:
            total = xs[slot].sum(0).expand(2, 3) if total is None else total + xs[slot].sum(0).expand(2, 3)
        return total

    for second, first in run_tensor_ranks(size, work):
        assert torch.equal(second, summed([0, 2, 4]))
        assert torch.allclose(first, summed(range(5)))


class TestTooLate:
    """What would change a sum that has begun is refused, never taken in half."""

    def replica(self, *, exact, slots=2):
        net = Parallel()
        replica = Replica(net, Alone(), exact=exact)
        replica.begin_step(Spread((range(slots),)))
        return net, replica

    @pytest.mark.parametrize("exact", [False, True])
    def test_a_second_backward_in_the_last_micro_batch(self, exact):
        net, replica = self.replica(exact=exact, slots=1)
        replica.begin_round(0, last=True)
        net(torch.ones(1, 3), both=True).sum().backward()
        with pytest.raises(UsageError, match=r"second\.bias got a gradient twice|second\.weight got a gradient twice"):
            net.second(torch.ones(1, 3)).sum().backward()

    def test_a_second_backward_before_the_last_is_accumulation(self):
        net, replica = self.replica(exact=False)
        replica.begin_round(0, last=False)
        for _ in range(2):
            net(torch.ones(1, 3), both=True).sum().backward()
        replica.begin_round(1, last=True)
        net(torch.ones(1, 3), both=True).sum().backward()
        replica.send()
        replica.reduce()
        assert torch.equal(net.first.bias.grad, torch.full((2,), 3.0))

    def test_a_gradient_replaced_after_it_was_sent(self):
        net, replica = self.replica(exact=False)
        replica.begin_round(0, last=True)
        net(torch.ones(1, 3), both=True).sum().backward()
        net.first.bias.grad = torch.ones(2)
        with pytest.raises(UsageError, match=r"gradient of first\.bias was replaced"):
            replica.send()

    @pytest.mark.parametrize("exact", [False, True])
    def test_zero_grad_at_the_head_of_the_loop_loses_nothing(self, exact):
        net, replica = self.replica(exact=exact)
        for slot in range(2):
            replica.begin_round(slot, last=slot == 1)
            net.zero_grad()
            net(torch.ones(1, 3), both=True).sum().backward()
        replica.send()
        replica.reduce()
        assert torch.equal(net.first.bias.grad, torch.full((2,), 2.0))

    def test_a_backward_outside_of_the_step_is_the_users_own(self):
        net, _ = self.replica(exact=True)
        net(torch.ones(1, 3), both=True).sum().backward()
        assert torch.equal(net.first.bias.grad, torch.ones(2))


def test_buckets_hold_neighbours_in_reverse_order_and_can_be_cut():
    parameters = [nn.Parameter(torch.zeros(n)) for n in (5, 100, 3)] + [nn.Parameter(torch.zeros(7).double())]
    buckets = lay_out(parameters, first_bytes=64, most_bytes=4 * 100)
    assert [[place.parameter for place in bucket.places] for bucket in buckets] == [[3], [2, 1], [0]]
    for bucket in buckets:
        assert all(place.start % 16 == 0 for place in bucket.places)
        for pieces in (1, 2, 3, 5):
            assert bucket.padded(pieces) % (16 * pieces) == 0
            assert bucket.padded(pieces) >= bucket.elements
