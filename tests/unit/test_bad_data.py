"""Bad data and losses that are no number: clear errors, policies that are counted, and nothing lost."""

import dataclasses
import math
import sys

import pytest
import torch

import elastic
from elastic.cli import main
from elastic.data.audit import account
from elastic.data.digest import chain
from elastic.distributed.group import Alone
from elastic.errors import DataError
from elastic.events import CheckpointSaved, Notice, Restored, StepCommitted, read_records
from elastic.history import audit_run
from elastic.metrics.fold import Metrics
from tests.harness.datasets import Drawing, Lying
from tests.harness.loading import LENGTH, make
from tests.harness.ranks import run_tensor_ranks
from tests.harness.training import dataset, model, per_sample, told_of, train


@pytest.fixture
def session(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py"])

    def make(**overrides):
        given = {"steps": 8, "global_batch_size": 10, "micro_batch_size": 4, "save_path": str(tmp_path / "run")}
        return elastic.Session(environ={}, **{**given, **overrides})

    return make


def loop(session, *, bad=(), data=None):
    """Train; in the `bad` iterations of this start the loss is no number. Returns parameters after each step."""
    states, seen = {}, []
    with session as run:
        net = run.parallelize(model())
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
        run.track(model=net, optimizer=optimizer)
        for step in run.steps(dataset() if data is None else data):
            with step:
                for batch in step.micro_batches():
                    spoiled = step.iteration in bad and step.iteration not in seen
                    step.backward(per_sample(net, batch) * (math.nan if spoiled else 1.0))
                seen.append(step.iteration)
                optimizer.step()
            seen.append(step.iteration)
            states[step.start] = torch.nn.utils.parameters_to_vector(net.parameters()).detach().clone()
    return states


def ends(act, caplog):
    with pytest.raises(SystemExit) as ended:
        act()
    return ended.value.code, caplog.text


class TestNotANumber:
    def test_stop_is_the_default_and_loses_nothing(self, session, caplog, tmp_path):
        code, text = ends(lambda: loop(session(save_interleaved_steps=2), bad=(4,)), caplog)
        assert code == 64
        assert "the loss of step 4 (samples 30 to 40) is nan" in text
        for policy in ("skip", "roll_back"):
            assert policy in text
        assert [event.iteration for event in told_of(tmp_path, CheckpointSaved)] == [2]
        loop(session())
        assert audit_run(tmp_path / "run").exact

    def test_skip_passes_over_the_step_and_counts_it(self, session, tmp_path, capsys):
        states = loop(session(on_nan="skip"), bad=(4, 6))
        assert torch.equal(states[30], states[20]), "the step changed nothing, momentum and decay included"
        assert not torch.equal(states[40], states[30])
        skipped = [event for event in told_of(tmp_path, StepCommitted) if event.skipped]
        assert [(event.start, event.stop, event.step_samples) for event in skipped] == [(30, 40, 0), (50, 60, 0)]
        found = audit_run(tmp_path / "run")
        assert found.exact
        assert (found.skipped_steps, found.skipped_samples, found.samples, found.never_used) == (2, 20, 60, 0)
        assert main(["audit", str(tmp_path / "run")]) == 0
        assert "used once, but for 20 that a policy skipped" in capsys.readouterr().out
        assert sum("its samples are passed over" in event.text for event in told_of(tmp_path, Notice)) == 2

    def test_roll_back_goes_to_the_last_save_and_passes_over_all_since(self, session, tmp_path):
        states = loop(session(on_nan="roll_back", save_interleaved_steps=2), bad=(6,))
        assert torch.equal(loop_reference(session, tmp_path)[30], states[30])
        found = audit_run(tmp_path / "run")
        assert found.problems == ()
        assert found.exact
        # Step 5 was done, and is not part of the lineage any more; samples 40 to 60 are passed over.
        assert (found.skipped_steps, found.skipped_samples, found.recomputed_steps) == (1, 20, 1 + 1)
        assert [event.iteration for event in told_of(tmp_path, Restored)] == [0, 4]

    def test_roll_back_with_nothing_saved_stops(self, session, caplog):
        code, text = ends(lambda: loop(session(on_nan="roll_back"), bad=(2,)), caplog)
        assert code == 64
        assert "nothing was saved yet" in text

    def test_an_account_without_a_step_says_why_it_does_not_add_up(self, session, tmp_path, capsys):
        with pytest.raises(SystemExit):
            loop(session(on_nan="roll_back"), bad=(2,))
        capsys.readouterr()
        assert main(["audit", str(tmp_path / "run")]) == 1
        assert "no step counts" in capsys.readouterr().out

    def test_all_ranks_decide_alike(self):
        """Only one rank's micro-batch is spoiled; the sum is nobody's any more."""

        def spoiled(net, batch):
            x, _ = batch
            return per_sample(net, batch) * (math.nan if bool((x[:, 0] > 2.0).any()) else 1.0)

        expected = train(Alone(), loss=spoiled, on_nan="skip")
        skipped = [event.skipped != "" for event in expected.events]
        assert any(skipped)
        assert not all(skipped)
        for run in run_tensor_ranks(3, lambda group: train(group, loss=spoiled, on_nan="skip")):
            assert [event.skipped != "" for event in run.events] == skipped
            assert [event.run_digest for event in run.events] == [event.run_digest for event in expected.events]
            assert torch.allclose(run.parameters, expected.parameters, rtol=0, atol=1e-9)

    def test_skipped_samples_are_a_metric_of_their_own(self, session, tmp_path):
        loop(session(on_nan="skip"), bad=(4,))
        metrics = Metrics()
        for record in read_records(tmp_path / "run" / "events"):
            metrics.apply(record)
        values = {sample.name: sample.value for family in metrics.collect() for sample in family.samples}
        assert values["elastic_skipped_samples_total"] == 10
        assert values["elastic_samples_total"] == 70
        assert values["elastic_consumed_samples"] == 80


def loop_reference(session, tmp_path):
    return loop(session(save_path=str(tmp_path / "reference")))


class Wavering(Drawing):
    lengths = 0

    def __len__(self):
        self.lengths += 1
        return self.length + self.lengths


class Ragged(Drawing):
    """Sequences of 0 to 3 numbers."""

    def __getitem__(self, index):
        return torch.zeros(index % 4), index % 3


def test_a_length_that_lies_is_found_out():
    loader = make(Lying(LENGTH))
    with pytest.raises(DataError, match=r"says that it holds 41 items, but item \d+ raised IndexError"):
        list(loader.next_step())


def test_a_length_that_lies_is_found_out_before_the_first_step(session, caplog):
    code, text = ends(lambda: loop(session(), data=Lying(100)), caplog)
    assert code == 64
    assert "says that it holds 100 items, but item" in text


def test_a_length_that_wavers_is_refused(session, caplog):
    code, text = ends(lambda: loop(session(), data=Wavering(100)), caplog)
    assert code == 64
    assert "its length must stay the same" in text


def test_a_data_set_that_shrinks_under_the_run_is_named():
    rows = Drawing(LENGTH)
    loader = make(rows)

    class Gone(IndexError):
        """What a list would raise."""

    rows.length = 3
    rows_get = Drawing.__getitem__

    def get(self, index):
        if index >= self.length:
            raise Gone(index)
        return rows_get(self, index)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Drawing, "__getitem__", get)
        with pytest.raises(DataError, match="became shorter while the run was using it"):
            list(loader.next_step())


def test_samples_of_another_length_say_how_to_put_them_together(session, caplog):
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        loop(session(), data=Ragged(100))


def test_a_skip_that_some_rank_denies_is_a_problem(session, tmp_path):
    loop(session(on_nan="skip"), bad=(4,))
    records = read_records(tmp_path / "run" / "events")

    def changed(**changes):
        return [
            dataclasses.replace(r, event=dataclasses.replace(r.event, **changes))
            if isinstance(r.event, StepCommitted) and r.event.skipped
            else r
            for r in records
        ]

    for changes, words in (
        ({"ranges": ((30, 40),)}, "samples were used, though they are told to be skipped"),
        ({"step_digest": 5, "run_digest": chain(0, 5)}, "is not the one of skipped samples"),
    ):
        found = account(changed(**changes), order=None)
        assert not found.exact
        assert any(words in problem for problem in found.problems)
