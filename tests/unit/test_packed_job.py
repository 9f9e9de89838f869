"""The job with packed sequences and a mixture: it learns, keeps its shares, and goes on where it was."""

import dataclasses
import sys

import pytest
import torch

from elastic.config.load import with_overrides
from elastic.config.model import ModelSettings, Settings
from elastic.data.packing import pack
from elastic.events import StepCommitted
from elastic.history import audit_run
from elastic.loop import run_job
from jobs.packed_mixture import BYTES, PackedModel, job, loss
from tests.harness.training import told_of

TEXT = "".join(f"def f{n}():\n    return {n}  \n\n# {'a comment ' * (n % 7)}of {n}\n" for n in range(40))
COMMENTS, OTHERS = 40, 80


@pytest.fixture
def given(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py"])
    (tmp_path / "text.py").write_text(TEXT)

    def given(place, *, steps):
        options = {"path": str(tmp_path / "text.py"), "steps": steps, "global_batch_size": 10, "micro_batch_size": 4}
        settings = with_overrides(Settings(), {**options, "save_path": str(tmp_path / place / "run")})
        return dataclasses.replace(settings, model=ModelSettings(layers=1, width=32, heads=2))

    return given


def test_it_learns_and_goes_on_where_it_was(given, tmp_path):
    for place, ends in (("whole", (24,)), ("parts", (7, 24))):
        for steps in ends:
            settings = given(place, steps=steps)
            run_job(job(settings), settings)
        assert audit_run(tmp_path / place / "run").exact
    losses, parts = ([step.loss for step in told_of(tmp_path / place, StepCommitted)] for place in ("whole", "parts"))
    assert parts == losses
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_seven_of_ten_samples_are_comments(given):
    data = job(given("", steps=1)).dataset()
    assert data.lengths == (COMMENTS, OTHERS)
    assert data.weights == (7, 3)


def test_a_sequence_does_not_see_its_neighbours_nor_what_comes_after():
    torch.manual_seed(0)
    model = PackedModel(layers=1, width=16, heads=2)
    one, two, other = (torch.randint(0, BYTES, (length,)) for length in (9, 12, 12))
    together, alone = pack([one, two], length=64), pack([one], length=64)
    assert torch.allclose(model(together)[0, :9], model(alone)[0, :9], atol=1e-6)
    assert torch.allclose(model(together)[0, :9], model(pack([one, other], length=64))[0, :9], atol=1e-6)
    total, weight = loss(model, together)
    sums = [loss(model, pack([each], length=64)) for each in (one, two)]
    assert total.item() == pytest.approx(sum(each.item() for each, _ in sums), rel=1e-5)
    assert (weight.item(), [each.item() for _, each in sums]) == (8 + 11, [8, 11])


def test_lines_of_one_byte_hold_nothing_to_predict():
    assert loss(PackedModel(layers=1, width=16, heads=2), pack([torch.tensor([5])], length=64))[1] == 0
