"""The scenarios of docs/checkpoints.md as whole runs, with the settings that stand there; and how often they save.

Only what would take hours is smaller: the number of steps, and how many lie between two saves.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import elastic
from elastic.errors import ExitCode
from elastic.events import CheckpointSaved, Notice, Restored, StepCommitted, read_records
from tests.harness.awkward import Masters
from tests.harness.training import CLASSES, FEATURES, dataset
from tests.unit.test_checkpoint_scenarios import BLOCKS

SMALL = {"save_interleaved_steps": 4, "micro_batch_size": 16}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """Relative paths are below this test's directory, and the command line says nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    torch.set_num_threads(1)


class Died(Exception):
    pass


def train(scenario, *, steps, die_at=None, seed=0, rate=0.1, change=("", ""), **overrides):
    """A run of a model in bfloat16 whose optimizer has float32 masters; gives both, as they were at their end."""
    environ = {}
    if scenario is not None:
        Path("run.yaml").write_text(BLOCKS[scenario].replace(*change))
        environ["ELASTIC_CONFIG"] = "run.yaml"
    with elastic.Session(environ=environ, **{**SMALL, "steps": steps, **overrides}) as run:
        torch.manual_seed(seed)
        model = run.parallelize(nn.Linear(FEATURES, CLASSES, dtype=torch.bfloat16))
        optimizer = Masters(model.parameters())
        optimizer.param_groups[0]["lr"] = rate
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(dataset()):
            with step:
                for x, y in step.micro_batches():
                    step.backward(F.cross_entropy(model(x.bfloat16()).float(), y, reduction="none"))
                optimizer.step()
            if step.iteration == die_at:
                raise Died
    return model, optimizer


def told(root, kind):
    return [each.event for each in read_records(Path(root) / "events") if isinstance(each.event, kind)]


def losses(root):
    return {each.iteration: (each.start, each.stop, each.loss) for each in told(root, StepCommitted)}


def test_scenario_a_goes_on_after_an_interruption():
    train("A", steps=12, load_path="", save_path="undisturbed")
    with pytest.raises(Died):
        train("A", steps=12, load_path="", die_at=7)
    train("A", steps=12)
    assert [(each.tier, each.iteration) for each in told("output/ckpt", Restored)] == [("none", 0), ("disk", 4)]
    assert losses("output/ckpt") == losses("undisturbed")


@pytest.mark.parametrize(("scenario", "change"), [("B", ("", "")), ("B2", ("00001000", "00000008"))])
def test_scenario_b_begins_from_weights(scenario, change):
    """At step 0 and sample 0, with masters of the loaded weights; its restarts go on from its own state."""
    weights, _ = train(None, steps=8, save_path="pretrained/ckpt")
    # At a rate of 0 a step writes each parameter from its master: a stale master would show.
    model, optimizer = train(scenario, steps=1, seed=5, rate=0.0, change=change)
    assert torch.equal(model.weight, weights.weight)
    assert torch.equal(optimizer.state[model.weight]["main_param"], weights.weight.float())
    restored = told("output/finetune_ckpt", Restored)[0]
    assert (restored.tier, restored.iteration, restored.consumed_samples) == ("disk", 0, 0)
    train(scenario, steps=6, change=change)
    assert [each.iteration for each in told("output/finetune_ckpt", Restored)] == [0, 1]
    assert [(n, start) for n, (start, _, _) in losses("output/finetune_ckpt").items()] == [
        (n, 24 * (n - 1)) for n in range(1, 7)
    ]


def test_scenario_c_goes_on_at_the_same_sample():
    train("C", steps=4, load_path="", change=("128", "64"))
    train("C", steps=4)
    found = [(n, start, stop) for n, (start, stop, _) in losses("output/ckpt").items()]
    assert found == [*((n, 64 * n - 64, 64 * n) for n in range(1, 5)), (5, 256, 384), (6, 384, 512)]
    common = json.loads(Path("output/ckpt/iteration_00000006/common.json").read_text())
    assert (common["global_step"], common["global_batch_size"], common["consumed_samples"]) == (4, 128, 512)


def test_scenario_d_is_harmless_alone():
    """With several workers: test_scenario_d_reads_each_byte_once."""
    with pytest.raises(Died):
        train("D", steps=12, load_path="", die_at=7)
    train("D", steps=12, load_path="")
    assert [(each.tier, each.iteration) for each in told("output/ckpt", Restored)] == [("none", 0), ("disk", 4)]
    assert list(losses("output/ckpt")) == list(range(1, 13))


def test_a_mistyped_load_path_starts_nothing():
    with pytest.raises(SystemExit) as ended:
        train("B", steps=2)
    assert ended.value.code == ExitCode.USAGE
    assert not list(Path("output").rglob("iteration_*"))


def test_with_save_interval_auto_the_distance_of_saves_follows_their_cost():
    """Cheap saves and no failure: seldom is enough, but the distance grows no more than fourfold at a time."""
    train(None, steps=100, save_path="run", save_interval="auto", save_mode="sync")
    assert [each.iteration for each in told("run", CheckpointSaved) if each.tier == "disk"] == [4, 20, 84, 100]
    notices = [each.text for each in told("run", Notice) if each.text.startswith("saves every")]
    assert [text.partition(":")[0] for text in notices] == [
        "saves every 16 steps instead of 4",
        "saves every 64 steps instead of 16",
        "saves every 256 steps instead of 64",
        "saves every 1024 steps instead of 256",
    ]
