"""Arenas: a state in shared memory that is valid whole or not at all, and is the file's image."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.checkpoint import arena as module
from elastic.checkpoint.arena import Arena, tensors_of
from elastic.checkpoint.image import DTYPE_NAMES, heap_image, plan_image
from elastic.checkpoint.layout import ShardKind
from elastic.checkpoint.manifest import Manifest
from elastic.checkpoint.memory import MemoryTier, NoRoom, Places
from elastic.checkpoint.room import Room, judge_room, look_for_room
from elastic.checkpoint.shards import Shard, decode_shard
from elastic.checkpoint.storage import PosixStorage

MANIFEST = Manifest(
    job_id="job", lineage="line", generation=3, iteration=7, consumed_samples=70, world_size=1, global_batch_size=10,
    seed=0, order_version=1, run_digest=5, settings={}, values={}, has_optimizer=True, torch_version="2", ancestors=(),
    files={},
)  # fmt: skip
PLENTY = Room(available_bytes=1 << 40, cgroup_bytes=None)


def shard(value: float, *, kind=ShardKind.MODEL, size=5000) -> Shard:
    tensors = {"w": torch.full((size,), value), "b": torch.full((3,), value, dtype=torch.float64)}
    return Shard(name=f"checkpoint-{kind}-0000000-0000001.safetensors", kind=kind, tensors=tensors)


def at(iteration: int) -> Manifest:
    return replace(MANIFEST, iteration=iteration)


@pytest.fixture
def places(tmp_path):
    paths = (tmp_path / "a", tmp_path / "b")
    for path in paths:
        path.touch()
    return Places(own=(str(paths[0]), str(paths[1])))


@pytest.fixture
def tier(places):
    made = MemoryTier(places, room=lambda: PLENTY)
    yield made
    made.close()


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def take(tier: MemoryTier, iteration: int, *, keep=False, size=5000):
    return tier.take(at(iteration), [shard(iteration, size=size)], rank=0, whole=True, keep=keep)


def test_every_dtype_comes_back_from_arena_and_file(tmp_path):
    tensors = {str(dtype): torch.arange(24).to(dtype).reshape(2, 12) for dtype in DTYPE_NAMES}
    tensors |= {"empty": torch.empty(0, 4), "scalar": torch.tensor(2.5), "turned": torch.arange(12.0).view(3, 4).t()}
    tensors["complex"] = torch.arange(6).to(torch.complex128)
    one = Shard(name="m-model-0000000-0000001.safetensors", kind=ShardKind.MODEL, tensors=tensors)
    (tmp_path / "a").touch()
    arena = Arena(str(tmp_path / "a"))
    (image,) = arena.write(MANIFEST, [one], sequence=1, rank=0, whole=True).images
    PosixStorage().write(str(tmp_path / "file"), image.data)
    held = arena.read()
    assert held is not None
    assert held.manifest == MANIFEST
    from_arena = tensors_of(one.name, held.images[one.name])
    from_file = decode_shard((tmp_path / "file").read_bytes(), file_name="file")
    on_heap = decode_shard(bytes(heap_image(one).data), file_name="heap")
    for name, tensor in on_heap.items():
        for other in (from_arena, from_file):
            assert other[name].dtype == tensor.dtype
            assert torch.equal(bits(other[name]), bits(tensor))
    assert {name: (each.dtype, each.shape) for name, each in ((t.name, t) for t in image.tensors)} == {
        t.name: (t.dtype, t.shape) for t in heap_image(one).tensors
    }
    arena.close()


@settings(max_examples=30)
@given(sizes=st.lists(st.integers(0, 3000), max_size=6))
def test_images_begin_at_pages_and_tensors_fill_them(sizes):
    plan = plan_image(
        Shard(name="x", kind=ShardKind.OPT, tensors={f"t{n}": torch.zeros(size) for n, size in enumerate(sizes)})
    )
    assert len(plan.header) % 4096 == 0
    assert plan.size_bytes == len(plan.header) + 4 * sum(sizes)


def test_two_arenas_are_written_in_turn_and_the_newest_is_first(tier):
    for iteration in (1, 2, 3):
        assert take(tier, iteration) is not None
    held = tier.held()
    assert [each.manifest.iteration for each in held] == [3, 2]
    (image,) = held[0].images.values()
    assert torch.equal(tensors_of("x", image)["w"], torch.full((5000,), 3.0))


def test_an_arena_on_its_way_to_disk_is_not_written_again(tier):
    first = take(tier, 1, keep=True)
    for iteration in (2, 3):  # however long that takes, copies do not grow old
        assert take(tier, iteration) is not None
        assert [each.manifest.iteration for each in tier.held()] == [iteration, 1]
    tier.give_back(first)
    assert take(tier, 4) is not None
    assert [each.manifest.iteration for each in tier.held()] == [4, 3]


def test_where_both_are_on_their_way_to_disk_none_is_written(tier):
    take(tier, 1, keep=True)
    last = take(tier, 2, keep=True)
    assert take(tier, 3) is None
    tier.give_back(last)
    assert take(tier, 3) is not None
    assert [each.manifest.iteration for each in tier.held()] == [3, 1]


def test_the_next_process_finds_them_and_writes_over_the_older(tier, places):
    take(tier, 1)
    take(tier, 2)
    again = MemoryTier(places, room=lambda: PLENTY)
    assert [each.manifest.iteration for each in again.held()] == [2, 1]
    take(again, 3, size=90000)  # and it has grown
    assert [each.manifest.iteration for each in again.held()] == [3, 2]
    again.close()


def test_closed_twice_it_closes_nothing_else(tier, places, tmp_path):
    take(tier, 1)
    tier.close()
    with open(tmp_path / "another", "wb") as file:  # takes the number that became free
        tier.close()
        file.write(b"still open")
    assert (tmp_path / "another").read_bytes() == b"still open"


def test_a_neighbour_sees_them(tier, places, tmp_path):
    take(tier, 4)
    for name in ("c", "d"):
        (tmp_path / name).touch()
    other = Places(own=(str(tmp_path / "c"), str(tmp_path / "d")), others=(*places.own, str(tmp_path / "gone")))
    neighbour = MemoryTier(other, room=lambda: PLENTY)
    assert [each.manifest.iteration for each in neighbour.held()] == [4]
    neighbour.close()


class Stopped(BaseException):
    pass


@pytest.mark.parametrize("point", ["memory.1", "memory.2", "memory.3", "tensor"])
def test_a_copy_broken_off_leaves_the_other(tier, places, monkeypatch, point):
    take(tier, 1)
    take(tier, 2)

    def stop(name):
        if name == point:
            raise Stopped

    if point == "tensor":
        monkeypatch.setattr(module, "storable", lambda *_: stop("tensor"))
    else:
        monkeypatch.setattr(module, "failpoint", stop)
    with pytest.raises(Stopped):
        take(tier, 3)
    assert [each.manifest.iteration for each in MemoryTier(places).held()] == [2]


@pytest.mark.parametrize("place", [0, 9, 17, 25, 33, 40, 4096, 4200])
def test_a_flipped_bit_in_head_or_note_makes_it_hold_nothing(tier, places, place):
    take(tier, 1)
    with open(places.own[0], "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 4]))
    assert tier.held() == []


def test_no_room_is_told_before_anything_is_changed(tier, places):
    take(tier, 1)
    poor = MemoryTier(places, room=lambda: Room(available_bytes=1 << 40, cgroup_bytes=1000))
    with pytest.raises(NoRoom, match="memory_every_steps: 0 switches"):
        take(poor, 2, size=1 << 20)
    with pytest.raises(NoRoom, match="control group"):
        poor.check_room(1 << 30)
    assert [each.manifest.iteration for each in poor.held()] == [1]
    poor.close()


@pytest.mark.parametrize(
    ("needed", "room", "enough"),
    [
        (10, Room(available_bytes=None, cgroup_bytes=None), True),
        (90, Room(available_bytes=100, cgroup_bytes=None), True),
        (91, Room(available_bytes=100, cgroup_bytes=None), False),
        (91, Room(available_bytes=1000, cgroup_bytes=100), False),
    ],
)
def test_room(needed, room, enough):
    assert judge_room(needed, room).enough is enough


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"/proc/self/cgroup": "0::/a/b", "/sys/fs/cgroup/a/memory.max": "max"}, None),
        (
            {
                "/proc/self/cgroup": "0::/a/b",
                "/sys/fs/cgroup/a/memory.max": "5000",
                "/sys/fs/cgroup/a/memory.current": "4500",
                "/sys/fs/cgroup/a/memory.stat": "anon 1\ninactive_file 200",
                "/sys/fs/cgroup/a/b/memory.max": "9000",
                "/sys/fs/cgroup/a/b/memory.current": "4000",
            },
            700,
        ),
        (
            {
                "/proc/self/cgroup": "5:memory:/x\n3:cpu:/y",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": "800",
                "/sys/fs/cgroup/memory/memory.usage_in_bytes": "100",
            },
            700,
        ),
        ({}, None),
    ],
)
def test_limits_of_control_groups(files, expected):
    files["/proc/meminfo"] = "MemTotal: 9 kB\nMemAvailable:   7 kB\n"
    assert look_for_room(files.get) == Room(available_bytes=7 * 1024, cgroup_bytes=expected)


def test_this_machine_says_something():
    assert (look_for_room().available_bytes or 0) > 0


def test_without_an_agent_the_memory_ends_with_the_process():
    before = set(os.listdir("/proc/self/fd"))
    own = MemoryTier(room=lambda: PLENTY)
    assert own.take(at(1), [shard(1)], rank=0, whole=False, keep=False) is not None
    own.close()
    assert len(os.listdir("/proc/self/fd")) == len(before)
