"""What went wrong elsewhere and has no better place: see docs/cases-checkpoint.md."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from tests.harness.checkpoints import Bench, make_run, meta, same
from tests.harness.dealt import deal
from tests.harness.ranks import ThreadGroup, run_ranks
from tests.harness.strict_reader import read_root


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def test_a_second_save_at_a_smaller_world_leaves_nothing_of_the_first(tmp_path):
    """Iteration 10 by four ranks, from before a rollback; then once more by two, with other numbers."""
    bench = Bench(tmp_path / "root")

    def save(ranks, value, generation):
        tracked = []
        for rank in range(ranks):
            model = nn.Linear(3, 7, bias=False)
            nn.init.constant_(model.weight, value)
            tracked.append({"model": model})
            deal(tracked[-1], rank=rank, ranks=ranks)
        done = run_ranks(
            ranks,
            lambda group: bench.manager(group=group).save(tracked[group.rank], meta(10, generation=generation)),
        )
        assert all(each.saved for each in done), done[0].reason

    save(4, 1.0, 1)
    save(2, 2.0, 2)
    other = nn.Linear(3, 7, bias=False)
    bench.manager().restore({"model": other})
    assert torch.equal(other.weight, torch.full((7, 3), 2.0))
    assert torch.equal(read_root(tmp_path / "root").model["weight"], torch.full((7, 3), 2.0))


def test_each_save_holds_what_the_tensors_are_then(tmp_path):
    """Also of a parameter that got other memory between two saves."""
    bench, run = Bench(tmp_path / "root"), make_run()
    manager = bench.manager()
    for iteration in (10, 20, 30):
        run.step()
        for each in run.tracked["model"].parameters():
            each.data = each.data.clone() + iteration
        assert manager.save(run.tracked, meta(iteration)).saved
        other = make_run(seed=9)
        bench.manager().restore(other.tracked)
        assert same(run, other)


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_was_loaded_does_not_hang_on_its_files(tmp_path, ranks):
    bench, run = Bench(tmp_path / "root"), make_run().step()
    bench.manager().save(run.tracked, meta(10))
    others = [make_run(seed=9) for _ in range(ranks)]
    run_ranks(ranks, lambda group: bench.manager(group=group).restore(others[group.rank].tracked))
    for path in bench.directory(10).glob("*.safetensors"):
        path.write_bytes(b"\xff" * path.stat().st_size)
    assert all(same(run, other) for other in others)


class Counting(ThreadGroup):
    """Counts the bytes that it sends or takes."""

    def __init__(self, rank, board):
        super().__init__(rank, board)
        self.bytes = 0

    def _exchange(self, value):
        found = super()._exchange(value)
        self.bytes += sum(len(json.dumps(each)) for each in found)
        return found

    def sum_(self, tensor):
        raise AssertionError("a save adds up no tensors")


def test_ranks_tell_one_another_names_and_not_elements(tmp_path):
    """A model that is 64 times as large costs nothing more, whether it is replicated or dealt out."""
    told = {}
    for width in (16, 1024):
        for dealt in (False, True):
            bench, ranks = Bench(tmp_path / f"{width}-{dealt}"), 3
            tracked = [{"model": nn.Linear(width, 16)} for _ in range(ranks)]
            if dealt:
                for rank, each in enumerate(tracked):
                    deal(each, rank=rank, ranks=ranks)

            def work(group, bench=bench, tracked=tracked):
                assert bench.manager(group=group).save(tracked[group.rank], meta(10)).saved
                return group.bytes

            told[width, dealt] = max(run_ranks(ranks, work, make=Counting))
    for dealt in (False, True):
        assert told[1024, dealt] < 1.2 * told[16, dealt]
    assert max(told.values()) < 16_000
