"""Arenas under SIGKILL: whenever the copying process dies, one valid copy is left, and it is what was copied."""

from __future__ import annotations

import os
import random
import signal

import pytest
import torch

from elastic.checkpoint.arena import tensors_of
from elastic.checkpoint.memory import MemoryTier, Places
from elastic.checkpoint.room import anonymous_arena
from elastic.clock import SYSTEM_CLOCK
from tests.harness.saving import in_child
from tests.unit.test_arena import at, shard

pytestmark = pytest.mark.integration

MOST_S = 0.02
"""Some copies take as long: a kill falls anywhere into them, and into what lies between."""
SIZES = (1 << 16, 1 << 20, 3 << 20)


LARGE = 12 << 20
"""As many elements are worth asking for huge pages."""


def copy_for_ever(places: Places, first: int, pipe: int, sizes: tuple[int, ...] = SIZES) -> None:
    """Copies of changing size, all of whose elements are their iteration."""
    torch.set_num_threads(1)
    tier = MemoryTier(places)
    shards = {size: shard(0.0, size=size) for size in sizes}
    iteration = first
    while True:
        size = sizes[iteration % len(sizes)]
        for tensor in shards[size].tensors.values():
            tensor.fill_(iteration)
        tier.take(at(iteration), [shards[size]], rank=0, whole=True, keep=False)
        if iteration == first:
            os.write(pipe, b".")
        iteration += 1


def check(places: Places) -> tuple[int, bool]:
    """The newest iteration; and whether the other arena was found half written."""
    tier = MemoryTier(places)
    held = tier.held()
    assert held, "no valid copy was left"
    for each in held:
        (image,) = each.images.values()
        for tensor in tensors_of("x", image).values():
            assert (tensor == each.manifest.iteration).all()
    if len(held) == 2:
        assert held[0].manifest.iteration == held[1].manifest.iteration + 1
    tier.close()
    return held[0].manifest.iteration, len(held) == 1


@pytest.mark.parametrize(
    ("kills", "seed"), [(30, 0), *(pytest.param(100, seed, marks=pytest.mark.exhaustive) for seed in range(1, 11))]
)
def test_killed_at_random_moments(kills, seed):
    dice = random.Random(seed)
    made = [anonymous_arena("elastic-test") for _ in range(2)]
    places = Places(own=(made[0][1], made[1][1]))
    newest = inside = 0
    for _ in range(kills):
        read, write = os.pipe()
        pid = in_child(lambda at=newest + 1, to=write: copy_for_ever(places, at, to))
        os.close(write)
        assert os.read(read, 1) == b".", "it died by itself"
        os.close(read)
        SYSTEM_CLOCK.sleep(dice.random() * MOST_S)
        os.kill(pid, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
        reached, broken = check(places)
        assert reached > newest
        newest, inside = reached, inside + broken
    for fd, _ in made:
        os.close(fd)
    print(f"{inside} of {kills} kills fell inside of a copy")
    assert inside >= kills // 4


@pytest.mark.exhaustive
def test_killed_while_large_arenas_get_their_memory():
    """The second one is new at each kill: its pages come while it is written for the first time."""
    dice, inside = random.Random(3), 0
    for _ in range(60):
        made = [anonymous_arena("elastic-test") for _ in range(2)]
        places = Places(own=(made[0][1], made[1][1]))
        read, write = os.pipe()
        pid = in_child(lambda to=write, at=places: copy_for_ever(at, 1, to, sizes=(LARGE,)))
        os.close(write)
        assert os.read(read, 1) == b".", "it died by itself"
        os.close(read)
        SYSTEM_CLOCK.sleep(dice.random() * 3 * MOST_S)
        os.kill(pid, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
        reached, broken = check(places)
        inside += reached == 1 and broken
        for fd, _ in made:
            os.close(fd)
    print(f"{inside} of 60 kills fell into the first copy to the second arena")
    assert inside >= 10
