"""The scenarios of docs/checkpoints.md, run as they stand there; and balanced loading."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
import torch

from elastic.checkpoint.balanced import part
from elastic.checkpoint.manager import CheckpointManager
from elastic.checkpoint.root import claim
from elastic.checkpoint.storage import PosixStorage
from elastic.clock import ManualClock
from elastic.config.load import resolve
from elastic.errors import NothingToRestore
from elastic.plan.progress import global_step_view
from tests.harness.checkpoints import Bench, RecordCommitter, make_run, meta, same
from tests.harness.ranks import run_ranks

PAGE = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text()
BLOCKS = dict(re.findall(r"<!-- scenario: (\w+) -->\n```yaml\n(.*?)```", PAGE, re.DOTALL))


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _in_a_directory_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def settings_of(scenario):
    Path("run.yaml").write_text(BLOCKS[scenario])
    return resolve(["--config", "run.yaml"], environ={}).settings


class Start:
    """One start of a run: a manager for each rank, as the session makes them."""

    def __init__(self, settings, committer):
        self.settings, self.committer = settings.checkpoint, committer
        self.identity = claim(self.settings.save_path, job_id=None)
        self.runs = []

    def manager(self, group, storage=None):
        return CheckpointManager(
            self.settings,
            identity=self.identity,
            group=group,
            committer=self.committer,
            emit=lambda event: None,
            storage=storage,
            clock=ManualClock(),
        )

    def restore(self, world_size):
        self.runs = [make_run(seed=50 + rank) for rank in range(world_size)]
        return run_ranks(
            world_size, lambda group: self.manager(group).restore(self.runs[group.rank].tracked)
        )  # fmt: skip

    def save(self, world_size, run, iteration, **others):
        results = run_ranks(world_size, lambda group: self.manager(group).save(run.tracked, meta(iteration, **others)))
        assert all(result.saved for result in results)


def test_all_scenarios_are_there():
    assert list(BLOCKS) == ["A", "B", "B2", "C", "D"]


@pytest.mark.parametrize("world_size", [1, 3])
def test_scenario_a(world_size):
    start = Start(settings_of("A"), RecordCommitter())
    run = make_run().step(5)
    start.save(2, run, 1000)
    restored = start.restore(world_size)
    assert {(each.iteration, each.consumed_samples) for each in restored} == {(1000, 8000)}
    assert all(same(run, each) for each in start.runs)


def test_scenario_a_without_a_first_run_is_refused():
    with pytest.raises(NothingToRestore, match="Leave load_path empty"):
        Start(settings_of("A"), RecordCommitter()).restore(1)


@pytest.mark.parametrize("scenario", ["B", "B2"])
@pytest.mark.parametrize("world_size", [1, 3])
def test_scenario_b(world_size, scenario):
    first = Bench(Path("pretrained/ckpt"))
    weights = make_run().step(7)
    first.manager().save(weights.tracked, meta(1000))
    start = Start(settings_of(scenario), RecordCommitter())
    restored = start.restore(world_size)
    assert {(each.iteration, each.consumed_samples, each.own) for each in restored} == {(0, 0, False)}
    for run in start.runs:
        for name, value in weights.tracked["model"].state_dict().items():
            assert torch.equal(run.tracked["model"].state_dict()[name], value)
        assert not run.tracked["optimizer"].state
    # The second start of this run goes on from its own state.
    run = start.runs[0].step()
    start.save(world_size, run, 500)
    assert {each.iteration for each in start.restore(world_size)} == {500}
    assert all(same(run, each) for each in start.runs)


@pytest.mark.parametrize("world_size", [1, 3])
def test_scenario_c(world_size):
    settings = settings_of("C")
    start = Start(settings, RecordCommitter())
    run = make_run().step(5)
    start.save(2, run, 1000, global_batch_size=64, consumed_samples=64_000)
    for restored in start.restore(world_size):
        assert (restored.iteration, restored.consumed_samples, restored.global_batch_size) == (1000, 64_000, 64)
        assert global_step_view(restored.consumed_samples, settings.training.global_batch_size) == 500
    assert all(same(run, each) for each in start.runs)


class CountingFile:
    def __init__(self, storage, file):
        self.storage, self.file = storage, file

    def read_into(self, views, at):
        count = self.file.read_into(views, at)
        self.storage.read_bytes += count
        return count


class Counting(PosixStorage):
    """Counts the bytes read of shards."""

    def __init__(self):
        self.read_bytes = 0

    def read(self, path):
        return self._count(path, super().read(path))

    def read_part(self, path, start, stop):
        return self._count(path, super().read_part(path, start, stop))

    @contextlib.contextmanager
    def open_bulk(self, path):
        with super().open_bulk(path) as file:
            yield CountingFile(self, file)

    def _count(self, path, data):
        self.read_bytes += len(data) if path.endswith(".safetensors") else 0
        return data


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_scenario_d_reads_each_byte_once(world_size):
    start = Start(settings_of("D"), RecordCommitter())
    run = make_run().step(5)
    with torch.no_grad():
        run.tracked["model"].body.bias.copy_(torch.tensor([-0.0, float("nan"), float("-inf"), 1e-42]))
    start.save(2, run, 1000)
    shards = list(Path("output/ckpt/iteration_00001000").glob("*.safetensors"))
    size_bytes = sum(path.stat().st_size for path in shards)
    storages = [Counting() for _ in range(world_size)]
    others = [make_run(seed=50 + rank) for rank in range(world_size)]

    def work(group):
        manager = start.manager(group, storages[group.rank])
        return manager.restore(others[group.rank].tracked).iteration

    assert run_ranks(world_size, work) == [1000] * world_size
    assert sum(each.read_bytes for each in storages) == size_bytes
    assert max(each.read_bytes for each in storages) <= size_bytes // world_size + len(shards)
    for other in others:
        for name, value in run.bits().items():
            assert torch.equal(value.flatten().view(torch.uint8), other.bits()[name].flatten().view(torch.uint8)), name


@pytest.mark.parametrize("spoil", ["flip", "remove", "manifest on one rank", "part on one rank"])
def test_balanced_loading_falls_back_with_all_ranks(spoil):
    start = Start(settings_of("D"), RecordCommitter())
    start.save(2, make_run().step(3), 1000)
    manager = Bench(Path("output/ckpt"), committer=start.committer)
    before = make_run().step(3)
    manager.going_on(job_id=start.identity.job_id).save(make_run().step(4).tracked, meta(2000))
    path = next(Path("output/ckpt/iteration_00002000").glob("*-model-*"))
    if spoil == "flip":
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)

    class Odd(PosixStorage):
        def read(self, path):
            self._fail(path, "elastic.json", "manifest on one rank")
            return super().read(path)

        def read_part(self, path, start, stop):
            self._fail(path, "-model-", "part on one rank")
            return super().read_part(path, start, stop)

        def _fail(self, path, name, when):
            if spoil == when and "iteration_00002000" in path and name in path:
                raise OSError(5, "Input/output error", path)

    others = [make_run(seed=50 + rank) for rank in range(3)]

    def work(group):
        manager = start.manager(group, Odd() if group.rank == 1 else None)
        if spoil == "remove" and group.rank == 0:
            path.unlink()
        return manager.restore(others[group.rank].tracked).iteration

    assert run_ranks(3, work) == [1000] * 3
    assert all(same(before, other) for other in others)


def test_parts_tile_a_file():
    for size_bytes in (0, 1, 2, 5, 100):
        for world_size in (1, 2, 3, 7):
            parts = [part(size_bytes, rank=rank, world_size=world_size) for rank in range(world_size)]
            assert [at for start, stop in parts for at in range(start, stop)] == list(range(size_bytes))
            assert max(stop - start for start, stop in parts) - min(stop - start for start, stop in parts) <= 1
