"""`elastic plan`: where a saved run would go on, by our rule and by those of others, and what becomes of samples."""

import math
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import elastic
from elastic.cli import main
from elastic.plan.outlook import Stand, outlook
from tests.harness.training import dataset, model, per_sample


class TestOutlook:
    stand = Stand(
        iteration=1001,
        consumed_samples=64064,
        epoch_position=64064,
        world_size=4,
        global_batch_size=64,
        micro_batch_size=8,
    )

    def rows(self, **sizes):
        found = outlook(self.stand, **sizes)
        return {row.rule: row for row in found.rows}, found

    def test_the_documented_examples(self):
        rows, _ = self.rows(world_size=2, global_batch_size=128)
        assert rows["elastic"].exact
        assert "step int(1001 x 64 / 128) = 500" in rows["MindSpore Transformers"].goes_on_at
        assert rows["MindSpore Transformers"].repeated_samples == 64
        assert rows["the same, rounded up"].skipped_samples == 64
        assert "2002 x 4 // 2 = 4004" in rows["MiniMind"].goes_on_at
        assert rows["MiniMind"].exact

    def test_64_to_96_at_step_1001_repeats_and_ours_does_not(self):
        rows, _ = self.rows(world_size=3, global_batch_size=96)
        assert (rows["elastic"].exact, rows["elastic"].goes_on_at) == (True, "sample 64064, iteration 1002")
        assert rows["MindSpore Transformers"].repeated_samples == 32
        assert rows["the same, rounded up"].skipped_samples == 64
        assert rows["MiniMind"].repeated_samples == 64064 - 2669 * 24

    @given(
        consumed=st.integers(0, 600), saved=st.integers(1, 70), now=st.integers(1, 70), worlds=st.integers(1, 8),
        micro=st.integers(1, 9), later=st.integers(1, 8),
    )  # fmt: skip
    @settings(deadline=None, max_examples=80)
    def test_what_each_rule_repeats_and_skips_is_what_it_would_use(self, consumed, saved, now, worlds, micro, later):
        """Counted on the samples themselves, by the formulas as they stand in the two projects."""
        stand = Stand(
            iteration=1, consumed_samples=consumed, epoch_position=consumed, world_size=worlds,
            global_batch_size=saved, micro_batch_size=micro,
        )  # fmt: skip
        rows = {row.rule: row for row in outlook(stand, world_size=later, global_batch_size=now).rows}
        goes_on_at = {
            "elastic": consumed,
            "MindSpore Transformers": int((consumed // saved) * saved / now) * now,
            "the same, rounded up": math.ceil((consumed // saved) * saved / now) * now,
            "MiniMind": (consumed // (worlds * micro)) * worlds // later * later * micro,
        }
        for rule, row in rows.items():
            used, rest = set(range(consumed)), set(range(goes_on_at[rule], consumed + 150))
            assert row.repeated_samples == len(used & rest), rule
            assert row.skipped_samples == len(set(range(consumed + 150)) - used - rest), rule

    def test_a_world_of_one_has_another_order_in_minimind(self):
        rows, _ = self.rows(world_size=1, global_batch_size=64)
        assert "another order" in rows["MiniMind"].note

    @pytest.mark.parametrize(("world_size", "slots", "idle"), [(1, (8,), 0), (3, (3, 3, 2), 1 / 9), (9, None, 1 / 9)])
    def test_shares_and_what_waits(self, world_size, slots, idle):
        _, found = self.rows(world_size=world_size, global_batch_size=64)
        assert found.slots_by_rank == (slots or (1,) * 8 + (0,))
        assert found.idle_share == pytest.approx(idle)


@pytest.fixture
def saved(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py"])
    path = tmp_path / "run"
    with elastic.Session(
        environ={}, save_path=str(path), steps=7, global_batch_size=10, micro_batch_size=5, save_interleaved_steps=3
    ) as run:
        net = run.parallelize(model())
        run.track(model=net)
        for step in run.steps(dataset()):
            with step:
                for batch in step.micro_batches():
                    step.backward(per_sample(net, batch))
    return str(path)


def test_the_command_shows_every_rule(saved, capsys):
    assert main(["plan", saved, "--from", "3", "--nodes", "3", "--gbs", "16"]) == 0
    out = capsys.readouterr().out
    assert "iteration 3: 30 samples used, saved at world size 1 with a global batch of 10" in out
    assert "sample 30, iteration 4: exact" in out
    assert "step int(3 x 10 / 16) = 1: repeats 14 samples" in out
    assert "step 2: skips 2 samples" in out
    assert "another order" in out
    assert "micro-batches of each rank in a step: 2, 1, 1 (33% of the ranks' time is waiting)" in out


def test_the_command_takes_the_newest_iteration_and_speaks_json(saved, capsys):
    import json

    assert main(["plan", saved, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["stand"]["iteration"] == 7
    assert [row["repeated_samples"] for row in found["rows"]] == [0, 0, 0]


def test_the_command_refuses_what_is_not_there(saved, capsys):
    assert main(["plan", saved, "--from", "4"]) == 64
    assert "holds no whole iteration 4; there are 3, 6, 7" in capsys.readouterr().err
    assert main(["plan", saved, "--nodes", "0"]) == 64
    assert main(["plan", saved, "--nodes", "-2", "--nproc", "-1"]) == 64
