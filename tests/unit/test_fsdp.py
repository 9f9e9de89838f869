"""What is dealt out and what is not, and what a session refuses with it. Real processes: tests/integration."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from elastic.config.load import with_overrides
from elastic.config.model import Settings
from elastic.data.stream import ShardStream
from elastic.distributed.dealing import Dealt
from elastic.distributed.fsdp import ELEMENTWISE, Sharded, adopt, not_dealt, units_of
from elastic.distributed.fsdp_exact import ExactSharded
from elastic.distributed.group import Alone
from elastic.distributed.replicate import Replica
from elastic.errors import UsageError
from elastic.plan.tree import Spread
from elastic.session.evaluation import evaluate
from elastic.session.parallel import lay_out
from elastic.session.run import Session
from elastic.session.source import DataSource
from elastic.world import World
from jobs.gpt import GPT, GPTConfig
from tests.harness.ranks import run_tensor_ranks
from tests.harness.training import course as make_course


def named(model, units):
    names = {id(each): name for name, each in model.named_modules()}
    return [names[id(each)] for each in units]


def test_units_are_the_blocks():
    model = GPT(GPTConfig(layers=3, width=8, heads=2, context=4))
    assert named(model, units_of(model)) == ["blocks.0", "blocks.1", "blocks.2"]
    assert units_of(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == []


def test_a_block_that_shares_a_parameter_is_left_to_the_whole():
    model = nn.Module()
    model.embed = nn.Embedding(4, 4)
    model.blocks = nn.ModuleList([nn.Linear(4, 4, bias=False), nn.Linear(4, 4), nn.Identity()])
    model.blocks[0].weight = model.embed.weight
    assert named(model, units_of(model)) == ["blocks.1"]
    model.blocks.append(model.blocks[1])
    assert units_of(model) == []


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList([nn.Linear(2, 2)])


def test_blocks_within_blocks_belong_to_the_outer_one_and_containers_are_looked_into():
    model = nn.Sequential(nn.ModuleList([Outer()]))
    assert named(model, units_of(model)) == ["0.0"]
    model = nn.ModuleDict({"outer": nn.ModuleList([nn.ModuleDict({"inner": nn.ModuleList([nn.Linear(2, 2)])})])})
    assert named(model, units_of(model)) == ["outer.0.inner.0"]


def test_what_cannot_be_dealt_out_stays_replicated():
    kept = [nn.Parameter(torch.zeros(4, 4)), nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(3, 2))]
    left = [
        nn.Parameter(torch.zeros(())),
        nn.Parameter(torch.zeros(0, 5)),
        nn.Parameter(torch.zeros(4, 3).t()),
        nn.Parameter(torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)),
        nn.Parameter(torch.zeros(20).bfloat16()),
        nn.Parameter(torch.zeros(90, dtype=torch.complex64)),
        nn.Parameter(torch.zeros(90).to(torch.float8_e4m3fn), requires_grad=False),
    ]
    assert not_dealt([*kept, *left]) == set(left)
    low = [nn.Parameter(torch.zeros(20).bfloat16()), nn.Parameter(torch.zeros(3, 2).bfloat16())]
    assert not_dealt(low) == set()


@pytest.mark.parametrize("kind", sorted(ELEMENTWISE, key=lambda each: each.__name__))
def test_elementwise_optimizers_treat_each_element_by_itself(kind):
    """A step on parts is the step on the whole, bit by bit."""
    torch.manual_seed(0)
    whole = nn.Parameter(torch.randn(7, 3))
    parts = [nn.Parameter(each.detach().clone()) for each in whole.chunk(3)]
    one, others = kind([whole], lr=0.1), kind(parts, lr=0.1)
    for _ in range(3):
        whole.grad = torch.randn(7, 3)
        for part, gradient in zip(parts, whole.grad.chunk(3), strict=True):
            part.grad = gradient.clone()
        one.step()
        others.step()
    assert torch.equal(whole, torch.cat(parts))


def test_a_grad_scaler_is_refused_with_the_remedy(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(sys, "argv", ["train.py"])

    def track():
        with Session(environ={}, global_batch_size=4, steps=1, save_path=str(tmp_path)) as run:
            run._opened.strategies.append(SimpleNamespace(deals=True))
            run.track(scaler=torch.amp.GradScaler("cpu"))

    with pytest.raises(SystemExit):
        track()
    assert "use bfloat16" in caplog.text


def test_an_evaluation_in_lockstep_measures_equally_often_and_says_the_same():
    rows = DataSource(dataset=torch.arange(23.0))

    def work(group, lockstep=True):
        times = []

        def measure(batch):
            times.append(len(batch))
            return {"mean": (batch.sum(), len(batch))}

        found = evaluate(rows, measure, group=group, device="cpu", batch_size=5, seed=0, lockstep=lockstep)
        return found["mean"], len(times)

    assert work(Alone()) == (11.0, 5)
    for size in (2, 3, 4, 7):
        assert set(run_tensor_ranks(size, work)) == {(11.0, -(-5 // size))}


@pytest.fixture
def alone():
    """A process group of this process alone, in which parameters are dealt out all the same."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    yield Alone()
    dist.destroy_process_group()


class Blocks(nn.Module):
    """A block, which is a unit of its own, and a head outside of it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([nn.Linear(3, 3)])
        self.head = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.blocks[0](x)))


@pytest.mark.parametrize("kind", [Sharded, ExactSharded])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_a_pass_beside_the_training_leaves_parts_in_their_places_and_changes_nothing(alone, grad, inside, kind):
    """As of an evaluation: without it each part outside of the blocks would stay whole, gradients and all."""

    def train(strategy, beside):
        optimizer = torch.optim.SGD(strategy.model.parameters(), lr=0.1, momentum=0.9)
        adopt(optimizer)
        for number in range(4):
            strategy.begin_step(Spread((range(1),)))
            strategy.begin_round(0, last=True)
            strategy.model(torch.full((2, 3), 0.1 * number)).square().sum().backward()
            strategy.send()
            strategy.reduce()
            if inside:
                beside(strategy.model)
            optimizer.step()
            if not inside:
                beside(strategy.model)
        return [each.full_tensor() if isinstance(each, DTensor) else each for each in strategy.model.parameters()]

    def look(model):
        with torch.set_grad_enabled(grad):
            model(torch.ones(5, 3))
        assert all(isinstance(each, DTensor) for each in model.parameters())

    expected = train(Replica(Blocks(), alone), lambda model: None)
    found = train(kind(Blocks(), alone), look)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(one, other)


def looks(model):
    """All that one can see of its modules but the parameters themselves."""
    return {
        name: (type(module), {key: len(value) if "_hooks" in key else None for key, value in vars(module).items()})
        for name, module in model.named_modules()
    }


@pytest.mark.parametrize("kind", [Sharded, ExactSharded])
@pytest.mark.parametrize("broken_off", [False, True])
def test_what_was_dealt_out_becomes_what_it_was_and_can_be_dealt_out_again(alone, kind, broken_off):
    model, called = Blocks(), []
    model.register_forward_hook(lambda *_: called.append(1))  # the user's own stays
    model.head.weight.requires_grad_(False)
    before, modules, shapes = looks(model), list(model.modules()), [each.shape for each in model.parameters()]
    for times in range(1, 4):
        lies = kind(model, alone)
        shown = dict(model.named_parameters())
        lies.begin_step(Spread((range(1),)))
        lies.begin_round(0, last=True)
        loss = model(torch.ones(2, 3)).square().sum()
        if not broken_off:
            loss.backward()
            lies.send()
            lies.reduce()
        assert {name: id(each) for name, each in lies.undo().items()} == {n: id(each) for n, each in shown.items()}
        assert looks(model) == before
        assert list(map(id, model.modules())) == list(map(id, modules))
        assert [each.shape for each in model.parameters()] == shapes
        assert all(each.is_meta for each in model.parameters())
        assert [each.requires_grad for each in model.parameters()] == [True, True, False, True]
        assert len(called) == times


def test_stand_ins_are_the_first_micro_batch_and_no_part_of_the_account():
    course = make_course(rank=2, size=3)  # 4 slots: 2, 1, 1
    loader = course._loader
    first = next(make_course(rank=0, size=3)._loader.next_step())
    own = list(loader.next_step())
    stand_in = loader.stand_in()
    assert (stand_in.slot, stand_in.samples) == (0, first.samples)
    assert all(map(torch.equal, stand_in.batch, first.batch))
    assert own[0].slot == 3
    assert loader.commit() == 10


def test_a_stream_has_no_stand_ins():
    course = make_course(rank=2, size=3, data=ShardStream(lambda shard, epoch, state=None: iter(()), shards=4))
    with pytest.raises(UsageError, match="a multiple of micro_batch_size times the number of workers"):
        course._loader.stand_in()


def test_exact_numerics_take_optimizers_that_give_every_part_the_same_bits(alone):
    settings = with_overrides(Settings(), {"strategy": "fsdp2", "numerics": "exact"})
    assert not lay_out(nn.Linear(1, 1), settings, world=World(), group=Alone()).lockstep

    def take(kind, net, **options):
        Dealt(net, alone, exact=True).adopt(kind(net.parameters(), lr=0.1, **options))

    class Own(torch.optim.AdamW):
        pass

    take(torch.optim.SGD, Blocks(), momentum=0.9)
    take(torch.optim.AdamW, Blocks().bfloat16())
    with pytest.raises(UsageError, match="Own is none that is known to"):
        take(Own, Blocks())
    with pytest.raises(UsageError, match="treats each element by itself, not fused"):
        take(torch.optim.AdamW, Blocks(), fused=True)
    with pytest.raises(UsageError, match=r"SGD rounds parameters of \['torch.bfloat16'\] differently"):
        take(torch.optim.SGD, Blocks().bfloat16())
