"""Exactly once: whatever happens to a run, its final lineage used the samples of the undisturbed run, in order."""

import pytest

from elastic.data.fetch import NumberedDataset
from elastic.data.loader import ElasticLoader
from elastic.data.stream import SlotState, StreamFetcher
from elastic.errors import ElasticError
from elastic.plan.batch import BatchPlan, MicroSpan
from tests.harness.data_simulation import KINDS, check

MOMENTS = ("crashes", "survived losses", "half fetched", "recomputed steps", "steps with a word missing")
EPOCHS = ("batch changes", "epoch ends inside of steps", "epoch ends between steps")


@pytest.mark.parametrize("kind", KINDS)
def test_any_run_uses_the_samples_of_the_undisturbed_one(kind):
    """Every fault, and every place that it can fall on, comes about many times; so do all world sizes."""
    happened = check(kind, range(40))
    assert all(happened.counts[what] > 10 for what in (*MOMENTS, *(EPOCHS if kind != "stream" else ()))), (
        happened.counts
    )
    assert set(happened.worlds) == set(range(1, 9))


def forgets_to_drop(loader):
    """A second try of a step goes on with what was fetched ahead for the next one."""
    loader._step = None


def one_early(plan, position, *, world_size, rank, real=BatchPlan.micro_batches):
    spans = real(plan, position, world_size=world_size, rank=rank)
    if not spans or spans[0].start == 0:
        return spans
    return (MicroSpan(slot=spans[0].slot, start=spans[0].start - 1, stop=spans[0].stop - 1), *spans[1:])


def not_read_again(fetcher, slot, before, *, real=StreamFetcher._reader):
    """A slot goes on from where its state was shared last, though it had come further."""
    return (
        real(fetcher, slot, before)
        if slot in fetcher._readers or slot not in fetcher._states
        else real(fetcher, slot, SlotState.from_text(fetcher._states[slot]).read)
    )


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
    "a slot of a stream begins where its state was shared last": (StreamFetcher, "_reader", not_read_again),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_caught(mistake, monkeypatch):
    """The check can fail: each of these is wrong in the samples used, in their order or in their draws."""
    home, name, wrong = MISTAKES[mistake]
    monkeypatch.setattr(home, name, wrong)
    with pytest.raises((AssertionError, ElasticError)):
        check("stream" if home is StreamFetcher else "map", range(20))


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_thousands_of_runs(kind):
    happened = check(kind, range(1000, 1600))
    assert happened.counts["runs"] == 600, "3,000 with those of the other kinds"
    assert all(happened.counts[what] > 50 for what in MOMENTS)
    assert kind == "stream" or all(happened.counts[what] > 50 for what in EPOCHS)
