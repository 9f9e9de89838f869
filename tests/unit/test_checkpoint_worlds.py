"""Several ranks: any world size reads what any other wrote, and all ranks agree on everything."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from elastic.checkpoint.balanced import BytesFile
from elastic.checkpoint.layout import parse_shard_name
from elastic.checkpoint.storage import PosixStorage
from elastic.errors import CheckpointError, Fenced, NothingToRestore
from tests.harness.checkpoints import Bench, make_run, meta, same
from tests.harness.faulty_storage import Fault, FaultyStorage
from tests.harness.ranks import run_ranks


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path / "root")


def save_at(bench, world_size, run, iteration, **others):
    return run_ranks(world_size, lambda group: bench.manager(group=group).save(run.tracked, meta(iteration, **others)))


@pytest.mark.parametrize("here", [1, 2, 3, 4])
@pytest.mark.parametrize("there", [1, 3])
def test_any_world_size_restores_any_other(bench, there, here):
    run = make_run().step(5)
    assert all(result.saved for result in save_at(bench, there, run, 5))
    others = [make_run(seed=1 + rank) for rank in range(here)]
    results = run_ranks(here, lambda group: bench.manager(group=group).restore(others[group.rank].tracked))
    assert {(result.iteration, result.world_size, result.consumed_samples) for result in results} == {(5, there, 40)}
    assert all(same(run, other) for other in others)
    run.step()
    for other in others:
        other.steps = 5
        assert same(run, other.step())


def test_up_and_down_the_same_root(bench):
    run = make_run()
    for iteration, world_size in enumerate((3, 1, 3, 2, 4), start=1):
        run.step()
        assert all(result.saved for result in save_at(bench, world_size, run, iteration, generation=iteration))
        others = [make_run(seed=9) for _ in range(world_size)]
        run_ranks(world_size, lambda group, o=others: bench.manager(group=group).restore(o[group.rank].tracked))
        assert all(same(run, other) for other in others)


def test_every_tensor_is_written_once_and_bytes_are_balanced(bench):
    from safetensors import safe_open

    run = make_run().step()
    save_at(bench, 3, run, 10)
    seen: list[str] = []
    for path in bench.directory(10).glob("*.safetensors"):
        assert parse_shard_name(path.name) is not None
        with safe_open(path, "pt") as file:
            seen += file.keys()
    assert len(seen) == len(set(seen))
    assert {"embed.weight", "exp_avg.embed.weight", "step.body.bias", "rng.0.torch", "rng.2.torch"} <= set(seen)
    assert "head.weight" not in seen


def test_more_ranks_than_tensors(tmp_path):
    bench = Bench(tmp_path / "root")
    model = torch.nn.Linear(2, 1, bias=False)
    results = run_ranks(4, lambda group: bench.manager(group=group).save({"model": model}, meta(10)))
    assert all(result.saved for result in results)
    names = sorted(path.name for path in bench.directory(10).glob("*.safetensors"))
    assert names[0] == "checkpoint-model-0000000-0000001.safetensors"
    assert names[1:] == [f"checkpoint-opt-{rank:07d}-0000004.safetensors" for rank in range(4)]
    other = torch.nn.Linear(2, 1, bias=False)
    run_ranks(2, lambda group: bench.manager(group=group).restore({"model": other}))
    assert torch.equal(model.weight, other.weight)


@pytest.mark.parametrize("failing", [0, 2])
def test_a_rank_that_cannot_write_fails_the_save_for_all(bench, failing):
    run = make_run().step()
    storages = [FaultyStorage(at=1 if rank == 0 else 0, fault=Fault.FAIL) for rank in range(3)]

    def work(group):
        storage = storages[group.rank] if group.rank == failing else PosixStorage()
        return bench.manager(group=group, storage=storage).save(run.tracked, meta(10))

    results = run_ranks(3, work)
    assert storages[failing].fired
    assert not any(result.saved for result in results)
    assert len({result.reason for result in results}) == 1
    assert f"rank {failing}" in results[0].reason
    assert bench.kinds() == ["checkpoint_failed"]
    assert not list(bench.root.glob(".tmp*"))


class _Blind(PosixStorage):
    """One rank's view of a disk: a read of the newest iteration's model shard gives other bytes."""

    def read(self, path: str) -> bytes:
        data = super().read(path)
        return data[:-1] + bytes([data[-1] ^ 1]) if "iteration_00000020" in path and "-model-" in path else data

    def open_bulk(self, path: str):
        return nullcontext(BytesFile(memoryview(self.read(path))))


def test_damage_that_only_one_rank_sees_makes_all_fall_back(bench):
    run = make_run().step()
    save_at(bench, 3, run, 10)
    bench.going_on().save(make_run().step(2).tracked, meta(20))
    bench.events.clear()
    others = [make_run(seed=9) for _ in range(3)]

    def work(group):
        storage = _Blind() if group.rank == 1 else PosixStorage()
        return bench.manager(group=group, storage=storage).restore(others[group.rank].tracked)

    assert {result.iteration for result in run_ranks(3, work)} == {10}
    assert all(same(run, other) for other in others)
    assert bench.kinds().count("checkpoint_rejected") == 1
    assert "rank 1: checkpoint-model-" in bench.reasons("checkpoint_rejected")


def test_a_misfit_on_one_rank_is_told_on_all_and_changes_nothing(bench):
    run = make_run().step()
    save_at(bench, 2, run, 10)
    others = [make_run(seed=9), make_run(seed=9)]
    del others[1].tracked["schedule"]
    errors = []

    def work(group):
        try:
            bench.manager(group=group).restore(others[group.rank].tracked)
        except CheckpointError as error:
            errors.append(str(error))

    run_ranks(2, work)
    assert len(errors) == 2
    assert all("rank 1" in text and "tracked object schedule" in text for text in errors)
    assert all(same(other, make_run(seed=9)) for other in others)


def test_refusals_reach_every_rank(bench, tmp_path):
    caught = []

    def restore(group):
        try:
            bench.manager(group=group, load_path=str(tmp_path / "gone")).restore(make_run().tracked)
        except NothingToRestore:
            caught.append(group.rank)

    run_ranks(3, restore)
    save_at(bench, 3, make_run().step(), 10, generation=5)

    def save(group):
        try:
            bench.manager(group=group).save(make_run().tracked, meta(10, generation=4))
        except Fenced:
            caught.append(group.rank)

    run_ranks(3, save)
    assert sorted(caught) == [0, 0, 1, 1, 2, 2]


def test_a_save_path_that_is_not_shared_is_told(bench):
    class Elsewhere(PosixStorage):
        def write(self, path: str, data: bytes) -> None:
            """As on another machine's disk: rank 0 never sees it."""

    run = make_run().step()
    storages = [PosixStorage(), Elsewhere()]
    results = run_ranks(
        2, lambda group: bench.manager(group=group, storage=storages[group.rank]).save(run.tracked, meta(10))
    )
    assert not any(result.saved for result in results)
    assert "all nodes share" in results[0].reason
