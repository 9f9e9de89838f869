"""Exactly once: whatever happens to a run, its final lineage used the samples of the undisturbed run, in order."""

import random

import pytest

from elastic.data.fetch import NumberedDataset
from elastic.data.loader import ElasticLoader
from elastic.errors import ElasticError
from elastic.plan.batch import BatchPlan, MicroSpan
from elastic.plan.data_order import DataOrder
from tests.harness.data_simulation import make_setting, simulate, undisturbed

KINDS = ["map", "blocks", "sequential", "mixed", "stream"]


def check(kind, seeds, *, most_workers=0):
    """Simulate one run for each seed; returns what happened in all of them together."""
    crashes = half_fetched = recomputed = changes = 0
    worlds = set()
    for seed in seeds:
        chance = random.Random(f"{kind}/{seed}")
        setting = make_setting(chance, kind=kind)
        run = simulate(setting, chance, most_workers=most_workers)
        assert run.used == undisturbed(setting), f"seed {seed}"
        assert [sample for sample, *_ in run.used] == list(range(setting.total))
        found = run.account(DataOrder.of(setting.order))
        assert found.problems == (), f"seed {seed}"
        assert found.exact
        assert (found.samples, found.recomputed_steps) == (setting.total, run.recomputed_steps)
        crashes += run.crashes
        half_fetched += run.half_fetched
        recomputed += run.recomputed_steps
        changes += run.batch_changes
        worlds |= set(run.worlds)
    return crashes, half_fetched, recomputed, changes, worlds


@pytest.mark.parametrize("kind", KINDS)
def test_any_run_uses_the_samples_of_the_undisturbed_one(kind):
    crashes, half_fetched, recomputed, changes, worlds = check(kind, range(40))
    assert crashes > 20
    assert half_fetched > 20
    assert recomputed > 20
    assert worlds == set(range(1, 9))
    assert (changes > 10) == (kind != "stream")


def forgets_to_drop(loader):
    """A second try of a step goes on with what was fetched ahead for the next one."""
    loader._step = None


def one_early(plan, position, *, world_size, rank, real=BatchPlan.micro_batches):
    spans = real(plan, position, world_size=world_size, rank=rank)
    if not spans or spans[0].start == 0:
        return spans
    return (MicroSpan(slot=spans[0].slot, start=spans[0].start - 1, stop=spans[0].stop - 1), *spans[1:])


MISTAKES = {
    "a rank's first micro-batch begins early": (BatchPlan, "micro_batches", one_early),
    "the position moves when a step is begun": (
        ElasticLoader,
        "move",
        lambda self, *, position, real=ElasticLoader.move, **place: real(
            self, position=min(position + 1, self._plan.total_samples) if position else 0, **place
        ),
    ),
    "what was fetched ahead is kept for a second try": (ElasticLoader, "close", forgets_to_drop),
    "random draws go on where the last item left them": (
        NumberedDataset,
        "_item",
        lambda self, sample, index: self._dataset[index],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_caught(mistake, monkeypatch):
    """The check can fail: each of these is wrong in the samples used, in their order or in their draws."""
    home, name, wrong = MISTAKES[mistake]
    monkeypatch.setattr(home, name, wrong)
    with pytest.raises((AssertionError, ElasticError)):
        check("map", range(20))


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_thousands_of_runs(kind):
    crashes, *_ = check(kind, range(1000, 1500))
    assert crashes > 500


@pytest.mark.exhaustive
@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # more processes than cores
@pytest.mark.parametrize("kind", ["map", "mixed", "stream"])
def test_runs_with_loader_processes(kind):
    crashes, *_ = check(kind, range(25), most_workers=3)
    assert crashes > 0
