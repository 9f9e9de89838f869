"""Mistakes planted into a real run: `elastic audit` finds each in what the run wrote, whatever it itself believed."""

import json
import sys
from itertools import islice

import pytest
import torch

import elastic
from elastic.cli import main
from elastic.data.loader import ElasticLoader
from elastic.data.sampler import SlotSampler
from elastic.events import Restored
from elastic.session.course import Course
from tests.harness.training import dataset, model, per_sample, told_of


@pytest.fixture
def start(tmp_path, monkeypatch):
    """One start of a run that ends after `until` steps."""
    monkeypatch.setattr(sys, "argv", ["train.py"])

    def start(*, until):
        options = {"global_batch_size": 10, "micro_batch_size": 4, "steps": until, "probe_items": 0}
        with elastic.Session(environ={}, save_path=str(tmp_path / "run"), **options) as run:
            net = run.parallelize(model())
            optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
            run.track(model=net, optimizer=optimizer)
            for step in run.steps(dataset()):
                with step:
                    for batch in step.micro_batches():
                        step.backward(per_sample(net, batch))
                    optimizer.step()

    return start


def audit(tmp_path, capsys):
    """What `elastic audit` ends with and what it finds."""
    capsys.readouterr()
    code = main(["audit", str(tmp_path / "run"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == (0 if found["exact"] else 1)
    return found


def late(course, restored, *, real=Course._go_to):
    """A resume takes up one sample behind where the run was."""
    real(course, restored)
    course.consumed_samples += bool(restored.consumed_samples)


def early(course, restored, *, real=Course._go_to):
    real(course, restored)
    course.consumed_samples -= bool(restored.consumed_samples)


def next_items(sampler, *, real=SlotSampler.__iter__):
    """The item of the next sample under each one's number."""
    for keys in real(sampler):
        yield [(sample, sampler.order.index(sample + 1)) for sample, _ in keys]


def twice(loader, *, real=ElasticLoader.next_step):
    """The second micro-batch of a step is fetched and thrown away; the first one reaches the loss in its place."""
    first, _, third = real(loader)
    yield from (first, first, third)


def test_without_a_mistake_it_adds_up(start, tmp_path, capsys):
    start(until=4)
    start(until=8)
    assert audit(tmp_path, capsys)["exact"]
    assert [event.consumed_samples for event in told_of(tmp_path, Restored)] == [0, 40]


@pytest.mark.parametrize(("wrong", "begins", "twice", "never"), [(late, 41, 0, 1), (early, 39, 1, 0)])
def test_a_resume_that_is_off_by_one(start, tmp_path, capsys, wrong, begins, twice, never, monkeypatch):
    start(until=4)
    monkeypatch.setattr(Course, "_go_to", wrong)
    start(until=8)
    found = audit(tmp_path, capsys)
    assert found["problems"] == [f"iteration 5 starts at sample {begins}; the one before stopped at 40"]
    assert (found["used_twice"], found["never_used"]) == (twice, never)


def test_items_that_are_off_by_one(start, tmp_path, capsys, monkeypatch):
    """Numbers and ranges are right; what was fetched under them is not."""
    monkeypatch.setattr(SlotSampler, "__iter__", next_items)
    start(until=4)
    problems = audit(tmp_path, capsys)["problems"]
    assert len(problems) == 4
    assert all("of the samples used; the order gives" in problem for problem in problems)


def test_what_counts_is_what_the_loss_was_computed_of(start, tmp_path, capsys, monkeypatch):
    """Plan, loader and position all say that every sample came once."""
    monkeypatch.setattr(ElasticLoader, "next_step", twice)
    start(until=4)
    found = audit(tmp_path, capsys)
    assert "iteration 1: 4 samples of (0, 10) were used twice: ranges ((0, 4), (0, 4), (8, 10))" in found["problems"]
    assert (found["used_twice"], found["never_used"]) == (16, 16)


def test_batches_that_come_in_another_order_are_refused_before_they_count(start, caplog, monkeypatch):
    """Loader processes that got out of step: each micro-batch is compared with the plan when it arrives."""
    monkeypatch.setattr(
        SlotSampler, "__iter__", lambda sampler, real=SlotSampler.__iter__: islice(real(sampler), 1, None)
    )
    with pytest.raises(SystemExit):
        start(until=1)
    assert "the data loader brought samples (4, 5, 6, 7); the plan asks for 0 to 4" in caplog.text
