"""Copies that a device makes beside the training: they count when their bytes are there, and no state counts before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic.checkpoint.memory import MemoryTier, Places
from elastic.clock import SYSTEM_CLOCK
from tests.harness.arenas import PLENTY, two_arenas
from tests.harness.checkpoints import Bench, make_run, meta, same
from tests.harness.slow_device import LIMIT_S, SlowDevice
from tests.harness.until import until


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return two_arenas(tmp_path)


@pytest.fixture
def device() -> Iterator[SlowDevice]:
    made = SlowDevice()
    yield made
    made.may_copy.set()


@pytest.fixture
def tier(places: Places, device: SlowDevice) -> Iterator[MemoryTier]:
    made = MemoryTier(places, room=lambda: PLENTY, copier=device)
    yield made
    device.may_copy.set()
    made.close()


def seen_by_another(places: Places) -> list[int]:
    """The iterations that a worker would find which took over now."""
    other = MemoryTier(places)
    try:
        return [each.manifest.iteration for each in other.held()]
    finally:
        other.close()


def test_a_copy_counts_when_its_bytes_are_there(tmp_path, places, tier, device):
    manager = Bench(tmp_path / "root").manager(save_mode="async", tier=tier, memory_every_steps=1, clock=SYSTEM_CLOCK)
    run = make_run().step(1)
    device.may_copy.set()
    manager.snapshot(run.tracked, meta(1))
    tier.settle()
    assert seen_by_another(places) == [1]
    device.may_copy.clear()
    manager.snapshot(run.step(1).tracked, meta(2))
    until(lambda: device.waited == 2, what="the thread that seals", limit_s=LIMIT_S)
    assert seen_by_another(places) == [1], "an arena that is being filled holds nothing"
    device.may_copy.set()
    tier.settle()
    assert seen_by_another(places) == [2, 1]


def test_the_next_copy_waits_for_the_one_before(tmp_path, places, tier, device):
    manager = Bench(tmp_path / "root").manager(save_mode="async", tier=tier, memory_every_steps=1, clock=SYSTEM_CLOCK)
    run = make_run()
    device.may_copy.set()
    for iteration in (1, 2, 3):
        manager.snapshot(run.step(1).tracked, meta(iteration))
    tier.settle()
    assert seen_by_another(places) == [3, 2]
    assert len(device.lent) == 2, "each arena's memory once"


def test_what_is_saved_is_the_state_of_the_boundary(tmp_path, tier, device):
    bench = Bench(tmp_path / "root")
    manager = bench.manager(save_mode="async", tier=tier, clock=SYSTEM_CLOCK)
    run = make_run().step(10)
    assert not manager.save(run.tracked, meta(10), wait=False).saved
    run.step(3)
    assert not manager.ready
    assert bench.committer.kept is None
    device.may_copy.set()
    assert manager.settle().saved
    other = make_run(seed=3)
    assert bench.manager().restore(other.tracked).iteration == 10
    assert same(other, make_run().step(10))


def test_a_copy_that_fails_fails_its_save_and_nothing_else(tmp_path, places, tier, device, caplog):
    bench = Bench(tmp_path / "root")
    manager = bench.manager(save_mode="async", tier=tier, memory_every_steps=1, clock=SYSTEM_CLOCK)
    run = make_run().step(10)
    device.may_copy.set()
    device.broken = True
    manager.save(run.tracked, meta(10), wait=False)
    assert not manager.settle().saved
    assert "illegal memory access" in bench.reasons("checkpoint_failed")
    manager.snapshot(run.step(1).tracked, meta(11))
    tier.settle()
    assert seen_by_another(places) == []
    assert "a copy in memory failed" in caplog.text
    device.broken = False
    assert manager.save(run.step(1).tracked, meta(12)).saved
    assert device.waited == 3
    assert seen_by_another(places) == [12]


def test_a_tier_is_not_closed_under_a_copy(tmp_path, places, tier, device):
    manager = Bench(tmp_path / "root").manager(save_mode="async", tier=tier, memory_every_steps=1)
    manager.snapshot(make_run().step(1).tracked, meta(1))
    device.may_copy.set()
    tier.close()
    assert seen_by_another(places) == [1]
