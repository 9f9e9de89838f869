"""The jobs that users copy: they learn, and their parts keep the contract of Job."""

from types import SimpleNamespace

import pytest
import torch

from elastic.data.loader import ElasticLoader
from elastic.job import load_job
from elastic.plan.batch import BatchPlan
from elastic.plan.order import Order
from elastic.world import World
from jobs.gpt import GPT, GPTConfig, loss_per_sample

TINY = GPTConfig(layers=2, width=16, heads=2, context=8)


@pytest.fixture
def settings(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the quick brown fox jumps over the lazy dog. " * 60)
    return SimpleNamespace(
        training=SimpleNamespace(global_batch_size=8, micro_batch_size=3, steps=40, seed=1),
        data=SimpleNamespace(path=str(path), num_workers=0),
        model=SimpleNamespace(layers=1, width=32, heads=2, context=16, dropout=0.0),
        optimizer=SimpleNamespace(learning_rate=1e-2, weight_decay=0.1, warmup_samples=40, max_grad_norm=0.0),
    )


def train(job, *, batch, micro, steps):
    """Mean loss of each step in a plain loop, as a world of one."""
    model, dataset = job.model(World()), job.dataset()
    optimizer = job.optimizer(model)
    rates = [group["lr"] for group in optimizer.param_groups]
    plan = BatchPlan(global_batch_size=batch, micro_batch_size=micro, total_samples=batch * steps)
    order = Order(length=len(dataset), seed=1)
    loader = ElasticLoader(dataset, plan=plan, order=order, seed=1, world_size=1, rank=0, collate_fn=job.collate)
    losses = []
    while not loader.finished:
        start, stop = plan.span(loader.position)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * (job.schedule(stop) if job.schedule else 1.0)
        total = torch.zeros(())
        for fetched in loader.next_step():
            each = job.loss(model, fetched.batch)
            assert each.shape == (len(fetched.samples),)
            (each.sum() / (stop - start)).backward()
            total += each.detach().sum() / (stop - start)
        optimizer.step()
        optimizer.zero_grad()
        loader.commit()
        losses.append(total.item())
    return losses


def test_the_default_job_learns(settings):
    job = load_job("jobs.pretrain_lm:job", settings)
    assert job.max_grad_norm is None
    losses = train(job, batch=8, micro=3, steps=40)
    assert losses[0] == pytest.approx(5.545, abs=0.1)  # ln 256: at first every byte is as likely
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    assert job.schedule(40) == 1.0
    assert job.schedule(320) == pytest.approx(0.1)


def test_first_weights_are_the_same_each_time(settings):
    job = load_job("jobs.pretrain_lm:job", settings)
    one, two = (torch.nn.utils.parameters_to_vector(job.model(World()).parameters()) for _ in range(2))
    assert torch.equal(one, two)


def test_the_custom_job_learns():
    losses = train(load_job("jobs.sentiment:job", None), batch=100, micro=16, steps=40)
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_no_position_sees_what_comes_after_it():
    torch.manual_seed(0)
    model = GPT(TINY)
    tokens = torch.randint(0, 256, (2, 8))
    changed = tokens.clone()
    changed[:, 5] += 1
    changed %= 256
    before, after = model(tokens), model(changed)
    assert torch.allclose(before[:, :5], after[:, :5], atol=1e-6)
    assert not torch.allclose(before[:, 5], after[:, 5], atol=1e-3)


def test_shorter_texts_than_the_context_are_read_too():
    assert GPT(TINY)(torch.zeros(1, 3, dtype=torch.long)).shape == (1, 3, 256)


def test_the_loss_of_a_sample_does_not_depend_on_its_batch():
    torch.manual_seed(0)
    model = GPT(TINY)
    x, y = torch.randint(0, 256, (2, 4, 8))
    together = loss_per_sample(model, (x, y))
    alone = torch.cat([loss_per_sample(model, (x[i : i + 1], y[i : i + 1])) for i in range(4)])
    assert torch.allclose(together, alone, atol=1e-6)


def test_embedding_and_output_layer_are_one():
    names = [name for name, _ in GPT(TINY).named_parameters()]
    assert "token.weight" in names
    assert not any("head" in name or "output" in name for name in names)


def test_weight_decay_is_for_matrices_only(settings):
    job = load_job("jobs.pretrain_lm:job", settings)
    optimizer = job.optimizer(job.model(World()))
    for group in optimizer.param_groups:
        assert all((parameter.dim() > 1) == (group["weight_decay"] > 0) for parameter in group["params"])
