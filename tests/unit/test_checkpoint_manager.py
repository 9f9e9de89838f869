"""Saving and restoring through the door: exactness, the layout on disk, first and later starts."""

from __future__ import annotations

import json
import random

import numpy
import pytest
import torch

from elastic.checkpoint.seams import CommitVerdict
from elastic.checkpoint.storage import PosixStorage
from elastic.checkpoint.survey import highest_generation
from elastic.errors import CheckpointError, Fenced, NothingToRestore, StoreUnavailable, UsageError
from tests.harness.checkpoints import Bench, NoRecord, make_run, meta, same


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path / "root")


OPTIMIZERS = {
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2),
    "amsgrad": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, amsgrad=True),
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9),
    "groups": lambda model: torch.optim.AdamW(
        [
            {"params": model.norm.parameters(), "weight_decay": 0.0},
            {"params": [*model.embed.parameters(), *model.body.parameters()], "lr": 3e-2},
        ],
        lr=torch.tensor(1e-2),
    ),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_next_steps_after_a_restore_are_bit_equal(bench, make):
    run = make_run(make=make).step(5)
    assert bench.manager().save(run.tracked, meta(5)).saved
    other = make_run(seed=9, make=make)
    restored = bench.manager().restore(other.tracked)
    other.steps = restored.iteration
    assert (restored.iteration, restored.consumed_samples, restored.tier) == (5, 40, "disk")
    assert (restored.run_digest, restored.seed, restored.global_batch_size, restored.world_size) == (1234567, 7, 8, 1)
    assert restored.settings == {"training": {"seed": 7}}
    assert same(run, other)
    assert same(run.step(6), other.step(6))
    assert run.tracked["schedule"].state_dict() == other.tracked["schedule"].state_dict()
    assert other.tracked["model"].head.weight is other.tracked["model"].embed.weight


def test_rng_goes_on_where_it_was(bench):
    run = make_run().step()
    bench.manager().save(run.tracked, meta(1))
    expected = (torch.rand(3).tolist(), random.random(), numpy.random.rand())
    bench.manager().restore(make_run(seed=3).tracked)
    assert (torch.rand(3).tolist(), random.random(), numpy.random.rand()) == expected


def test_the_directory_is_the_seeds(bench):
    run = make_run().step()
    bench.manager().save(run.tracked, meta(10, loss_scale=2.0, epoch_num=1, step_num=4, global_step=9))
    names = sorted(path.name for path in bench.directory(10).iterdir())
    assert names == [
        "checkpoint-model-0000000-0000001.safetensors",
        "checkpoint-opt-0000000-0000001.safetensors",
        "common.json",
        "elastic.json",
        "metadata.json",
    ]
    assert sorted(path.name for path in bench.root.iterdir()) == [
        "elastic_run.json",
        "iteration_00000010",
        "latest_checkpointed_iteration.txt",
    ]
    assert (bench.root / "latest_checkpointed_iteration.txt").read_bytes() == b"10"
    assert json.loads((bench.directory(10) / "common.json").read_text()) == {
        "epoch_num": 1,
        "step_num": 4,
        "global_step": 9,
        "loss_scale": 2.0,
        "global_batch_size": 8,
        "consumed_samples": 80,
        "ckpt_status": None,
    }
    metadata = json.loads((bench.directory(10) / "metadata.json").read_text())
    assert metadata["state_dict_metadata"]["embed.weight"]["global_shape"] == [7, 4]
    stored = metadata["storage_data"]["('embed.weight', (0, 0))"][0]
    assert stored["file_name"] == "checkpoint-model-0000000-0000001.safetensors"
    assert "('exp_avg.embed.weight', (0, 0))" in metadata["storage_data"]
    assert "('exp_avg_sq.body.bias', (0,))" in metadata["storage_data"]


def test_files_can_be_read_by_other_users(bench):
    bench.manager().save(make_run().step().tracked, meta(10))
    for path in bench.directory(10).iterdir():
        assert path.stat().st_mode & 0o444 == 0o444, path.name


def test_a_run_begins_without_anything_saved(bench):
    run = make_run()
    restored = bench.manager().restore(run.tracked)
    assert (restored.iteration, restored.tier) == (0, "none")
    assert same(run, make_run())
    assert bench.kinds() == ["restored"]


def test_the_root_shows_its_highest_generation(bench):
    storage = PosixStorage()
    assert highest_generation(str(bench.root), storage=storage) == 0
    bench.manager().save(make_run().step().tracked, meta(10, generation=4))
    assert highest_generation(str(bench.root), storage=storage) == 4
    (bench.root / ".tmp-20-7-abc").mkdir()
    assert highest_generation(str(bench.root), storage=storage) == 7


def test_a_store_that_is_away_is_told_as_such(bench):
    def away():
        raise StoreUnavailable("no endpoint answers")

    manager = bench.manager()
    bench.committer.record = away
    with pytest.raises(StoreUnavailable, match="no endpoint"):
        manager.restore(make_run().tracked)


def test_due_counts_steps_and_not_twice(bench):
    manager = bench.manager()
    assert [step for step in range(31) if manager.due(step)] == [10, 20, 30]
    run = make_run().step()
    manager.save(run.tracked, meta(10))
    assert not manager.due(10)
    again = manager.save(run.tracked, meta(10))
    assert again.saved
    assert "already" in again.reason
    assert not bench.manager(enable_save=False).due(10)


def test_save_events_tell_bytes_and_interval(bench):
    manager = bench.manager()
    run = make_run().step()
    total_bytes = manager.save(run.tracked, meta(10)).total_bytes
    manager.save(run.tracked, meta(20))
    first, second = bench.events
    assert first.bytes == total_bytes == sum(path.stat().st_size for path in bench.directory(10).iterdir())
    assert (first.interval_s, second.interval_s) == (None, 0.0)


def test_no_save_optim_keeps_weights_only_and_says_how_to_use_them(bench, tmp_path):
    run = make_run().step(3)
    bench.manager(no_save_optim=True).save(run.tracked, meta(10))
    assert not list(bench.directory(10).glob("*opt*"))
    with pytest.raises(CheckpointError, match="no_load_optim: True"):
        bench.manager().restore(make_run().tracked)
    fresh = make_run(seed=4)
    elsewhere = Bench(tmp_path / "other")
    restored = elsewhere.manager(load_path=str(bench.root), no_load_optim=True).restore(fresh.tracked)
    assert (restored.iteration, restored.consumed_samples, restored.tier) == (0, 0, "disk")
    assert torch.equal(fresh.tracked["model"].embed.weight, run.tracked["model"].embed.weight)
    assert not fresh.tracked["optimizer"].state


def test_load_path_counts_at_the_first_start_only(bench, tmp_path):
    source = make_run().step(5)
    bench.manager().save(source.tracked, meta(5))
    second = Bench(tmp_path / "second")
    run = make_run(seed=2)
    restored = second.manager(load_path=str(bench.root)).restore(run.tracked)
    assert (restored.iteration, restored.own) == (5, False)
    assert same(run, source)
    run.steps = 5
    second.manager(load_path=str(bench.root)).save(run.step(5).tracked, meta(10))
    again = make_run(seed=3)
    restored = second.manager(load_path=str(bench.root), no_load_optim=True).restore(again.tracked)
    assert (restored.iteration, restored.own) == (10, True)
    assert same(again, run)


def test_one_iteration_directory_can_be_loaded(bench, tmp_path):
    source = make_run().step(5)
    bench.manager().save(source.tracked, meta(5))
    copy = tmp_path / "best"
    bench.directory(5).rename(copy)
    assert Bench(tmp_path / "y").manager(load_path=str(copy) + "/").restore(make_run().tracked).iteration == 5


@pytest.mark.parametrize("kind", ["missing", "empty", "nothing"])
def test_a_load_path_without_anything_is_refused(bench, tmp_path, kind):
    path = tmp_path / "load"
    if kind != "missing":
        path.mkdir()
    if kind == "nothing":
        (path / "notes.txt").write_text("no checkpoint")
    with pytest.raises(NothingToRestore, match=str(path)) as caught:
        bench.manager(load_path=str(path)).restore(make_run().tracked)
    assert caught.value.exit_code == 64


def test_load_path_like_save_path_is_explained(bench):
    with pytest.raises(NothingToRestore, match="Leave load_path empty"):
        bench.manager(load_path=str(bench.root)).restore(make_run().tracked)


def test_a_stale_commit_is_fenced(bench):
    run = make_run().step()
    manager = bench.manager()
    manager.save(run.tracked, meta(10))
    bench.committer.answer = CommitVerdict(granted=False, stale=True, reason="generation 2 exists")
    with pytest.raises(Fenced, match="generation 2 exists"):
        manager.save(run.step().tracked, meta(20))
    assert bench.kinds()[-1] == "fenced"
    bench.committer.answer = CommitVerdict(granted=True, reason="")
    assert bench.manager().restore(make_run().tracked).iteration == 10
    assert "set aside" in bench.events[-2].text


def test_a_refusal_that_is_not_stale_is_a_failed_save(bench):
    manager = bench.manager()
    bench.committer.answer = CommitVerdict(granted=False, reason="etcd does not answer")
    result = manager.save(make_run().step().tracked, meta(10))
    assert not result.saved
    assert "etcd does not answer" in bench.reasons("checkpoint_failed")
    assert manager.due(10)


def test_settings_that_cannot_be_met(bench):
    with pytest.raises(UsageError, match="save_max"):
        bench.manager(save_max=0)


def test_what_cannot_be_saved_is_told_before_the_first_step(bench):
    class Odd:
        def state_dict(self):
            return {"lock": object()}

        def load_state_dict(self, state):
            raise AssertionError(state)

    with pytest.raises(CheckpointError, match=r"extra\.odd\.lock.*builtins\.object"):
        bench.manager().restore(make_run().tracked | {"odd": Odd()})
    result = bench.manager().save(make_run().tracked | {"odd": Odd()}, meta(10))
    assert not result.saved


def test_without_a_record_the_tracker_decides(tmp_path):
    bench = Bench(tmp_path / "root", committer=NoRecord())
    run = make_run().step()
    manager = bench.manager()
    manager.save(run.tracked, meta(10))
    manager.save(run.step().tracked, meta(20))
    (bench.root / "latest_checkpointed_iteration.txt").write_text("10")
    assert bench.manager().restore(make_run().tracked).iteration == 10
