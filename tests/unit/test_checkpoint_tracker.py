"""The tracker never moves back, whenever its writer was paused."""

from __future__ import annotations

import pytest

from elastic.checkpoint.layout import MANIFEST, TRACKER, iteration_dir
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.storage import PosixStorage
from elastic.checkpoint.tracker import follow
from elastic.errors import Fenced
from tests.harness.checkpoints import Bench, make_run, meta


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path / "root")


def save(bench: Bench, iteration: int, generation: int) -> Manifest:
    run = make_run()
    manager = bench.manager(save_max=9)
    manager.restore(run.tracked)
    assert manager.save(run.tracked, meta(iteration, generation=generation)).saved
    return Manifest.from_bytes((bench.root / iteration_dir(iteration) / MANIFEST).read_bytes())


def tracker(bench: Bench) -> str:
    return (bench.root / TRACKER).read_text()


def test_paused_before_it_looked(bench):
    old = save(bench, 1, 1)
    save(bench, 3, 2)
    with pytest.raises(Fenced, match="iteration 3"):
        follow(str(bench.root), old, storage=PosixStorage())
    assert tracker(bench) == "3"


def test_paused_between_looking_and_writing(bench):
    old = save(bench, 1, 1)

    class Paused(PosixStorage):
        pauses = 0

        def replace(self, path: str, data: bytes) -> None:
            if not self.pauses:
                self.pauses += 1
                save(bench, 3, 2)
            super().replace(path, data)

    storage = Paused()
    with pytest.raises(Fenced):
        follow(str(bench.root), old, storage=storage)
    assert storage.pauses == 1
    assert tracker(bench) == "3"


def test_what_is_newer_but_of_no_later_generation_does_not_count(bench):
    old = save(bench, 1, 1)
    save(bench, 3, 1)
    follow(str(bench.root), old, storage=PosixStorage())
    assert tracker(bench) == "1"


def test_a_damaged_newer_one_does_not_count(bench):
    old = save(bench, 1, 1)
    save(bench, 3, 2)
    for shard in (bench.root / iteration_dir(3)).glob("*.safetensors"):
        shard.write_bytes(b"")
    follow(str(bench.root), old, storage=PosixStorage())
    assert tracker(bench) == "1"
