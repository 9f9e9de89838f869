"""How much of a state came to a rank by which way, and how fast: exact, told once, also of a try that broke off."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from elastic.checkpoint import handover
from elastic.checkpoint.arrivals import Arrivals, Arrived
from elastic.checkpoint.handover import give, pack, take
from elastic.checkpoint.layout import MANIFEST, ShardKind
from elastic.checkpoint.root import claim
from elastic.checkpoint.seams import AloneGroup
from elastic.checkpoint.shards import Shard
from elastic.clock import ManualClock
from elastic.errors import CheckpointDamaged, PeerLost
from elastic.events import Restored
from elastic.history import newest_manifest
from tests.harness.apart import Apart
from tests.harness.arenas import open_node
from tests.harness.checkpoints import Bench, make_run, meta, same
from tests.harness.ranks import TensorGroup, run_tensor_ranks
from tests.unit.test_checkpoint_parts import dealt
from tests.unit.test_checkpoint_parts_peers import train
from tests.unit.test_recalling import live, open_tier

CHUNK_BYTES = 1000
EACH_S = 0.5
"""How long a piece takes."""
SILENT_S = 7.0
"""How long one waits for the first."""


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def restores(bench: Bench | Apart) -> list[Restored]:
    return [event for event in bench.events if isinstance(event, Restored)]


def shard_bytes(directory) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.safetensors"))


def test_what_came_is_told_once_by_tier():
    clock = ManualClock()
    arrivals = Arrivals(clock)
    count = arrivals.begin("peer", givers=(3, 1))
    for size_bytes in (600, 400):
        clock.sleep(0.25)
        count(size_bytes)
    clock.sleep(60.0)  # nothing came of it
    arrivals.begin("memory")(0)
    arrivals.begin("disk")(7)
    assert arrivals.told() == Arrived(ways=(("disk", 7, 0.0), ("peer", 1000, 0.5)), givers=(1, 3))
    assert arrivals.told() == Arrived()


@dataclass
class Wire(AloneGroup):
    """What is sent lies there until it is received, which takes time. After `most` messages it is cut."""

    clock: ManualClock
    most: int = 1000
    sent: deque[torch.Tensor] = field(default_factory=deque)

    def send(self, tensor, *, to):
        self.sent.append(tensor.clone())

    def receive_(self, tensor, *, source):
        self.most -= 1
        if self.most < 0:
            self.clock.sleep(100.0)
            raise PeerLost("it went silent")
        self.clock.sleep(SILENT_S if tensor.dtype == torch.int64 else EACH_S)
        tensor.copy_(self.sent.popleft())


def given(tmp_path, clock, monkeypatch) -> Wire:
    """A state on a wire: two messages that tell of it, then its chunks."""
    monkeypatch.setattr(handover, "_CHUNK_BYTES", CHUNK_BYTES)
    assert Bench(tmp_path / "root").manager().save(make_run().tracked, meta(10)).saved
    shards = [
        Shard(name=f"{kind}-0000000-0000001.safetensors", kind=kind, tensors={"w": torch.randn(size)})
        for kind, size in ((ShardKind.MODEL, 900), (ShardKind.OPT, 300))
    ]
    wire = Wire(clock)
    give(newest_manifest(str(tmp_path / "root")), [pack(each) for each in shards], line=wire, to=1)
    return wire


def test_a_transfer_counts_its_bytes_from_when_it_was_announced(tmp_path, monkeypatch):
    clock = ManualClock()
    wire, arrivals = given(tmp_path, clock, monkeypatch), Arrivals(clock)
    sizes = [len(each) for each in list(wire.sent)[2:]]
    assert sizes[:3] == [CHUNK_BYTES] * 3
    assert sizes.count(CHUNK_BYTES) == len(sizes) - 2
    _, images = take(line=wire, source=4, arrivals=arrivals)
    assert sum(sizes) == sum(map(len, images.values())) > 4 * (900 + 300)
    assert arrivals.told() == Arrived(ways=(("peer", sum(sizes), len(sizes) * EACH_S),), givers=(4,))


@pytest.mark.parametrize("chunks", [0, 1, 5])
def test_a_transfer_that_breaks_off_counts_what_came(tmp_path, monkeypatch, chunks):
    clock = ManualClock()
    wire, arrivals = given(tmp_path, clock, monkeypatch), Arrivals(clock)
    sizes, wire.most = [len(each) for each in list(wire.sent)[2:]], 2 + chunks
    with pytest.raises(PeerLost):
        take(line=wire, source=4, arrivals=arrivals)
    came = (("peer", sum(sizes[:chunks]), chunks * EACH_S),) if chunks else ()
    assert arrivals.told() == Arrived(ways=came, givers=(4,) if chunks else ())


def test_what_came_altered_came_all_the_same(tmp_path, monkeypatch):
    clock = ManualClock()
    wire, arrivals = given(tmp_path, clock, monkeypatch), Arrivals(clock)
    sizes = [len(each) for each in list(wire.sent)[2:]]
    wire.sent[-1][-1] ^= 1
    with pytest.raises(CheckpointDamaged):
        take(line=wire, source=4, arrivals=arrivals)
    assert arrivals.told().ways == (("peer", sum(sizes), len(sizes) * EACH_S),)


class Slow(TensorGroup):
    """Each message takes its time. `cut_at`: from so many on this rank gets none."""

    def __init__(self, own: TensorGroup, clock: ManualClock, cut_at: int = 1000) -> None:
        super().__init__(own.rank, own._board)
        self.clock, self.left = clock, cut_at

    def receive_(self, tensor, *, source):
        self.left -= 1
        if self.left < 0:
            raise PeerLost("it went silent")
        super().receive_(tensor, source=source)
        self.clock.sleep(EACH_S)


def handed_over(bench: Bench) -> int:
    """Bytes of what a rank gives away: two files as they are saved, but for what is one rank's alone."""
    shards = []
    for path in sorted(bench.directory(10).glob("*.safetensors")):
        tensors = {name: each for name, each in load_file(path).items() if not name.startswith("rng.")}
        kind = ShardKind.OPT if path.name.startswith(ShardKind.OPT) else ShardKind.MODEL
        shards.append(Shard(name=path.name, kind=kind, tensors=tensors))
    assert len(shards) == 2
    return sum(len(pack(each).data) for each in shards)


def meets(bench: Bench, own: TensorGroup, clock: ManualClock, *, cut_at: int = 1000):
    """Rank 0 stands at step 14, rank 1 is new."""
    run = make_run(seed=5) if own.rank else make_run().step(14)
    manager = bench.manager(group=Slow(own, clock, cut_at), generation=2, clock=clock)
    return manager, run, lambda: manager.rejoin(run.tracked, None if own.rank else meta(14))


def test_a_newcomer_tells_what_it_got_from_its_peer(tmp_path):
    bench = Bench(tmp_path / "root")
    assert bench.manager(generation=1).save(make_run().step(10).tracked, meta(10)).saved

    def rank(own: TensorGroup):
        _, run, meet = meets(bench, own, ManualClock())
        meet()
        return run

    assert all(same(run, make_run().step(14)) for run in run_tensor_ranks(2, rank))
    by_tier = {event.tier: event for event in restores(bench)}
    assert (by_tier["process"].arrived, by_tier["process"].givers) == ((), ())
    assert by_tier["peer"].arrived == (("peer", handed_over(bench), 2 * EACH_S),), "two files, a chunk each"
    assert by_tier["peer"].givers == (0,)
    assert by_tier["peer"].seconds == 4 * EACH_S, "and two messages before them"


def test_a_transfer_that_broke_off_is_told_by_the_rung_below(tmp_path):
    bench = Bench(tmp_path / "root")
    assert bench.manager(generation=1).save(make_run().step(10).tracked, meta(10)).saved

    def rank(own: TensorGroup):
        manager, run, meet = meets(bench, own, ManualClock(), cut_at=3)
        with pytest.raises(PeerLost):
            meet()
        own.cut()
        if own.rank:
            identity = claim(str(bench.root), job_id="job")
            manager.serve(identity, group=AloneGroup(), committer=bench.committer, generation=3)
            assert manager.restore(run.tracked).iteration == 10
        return run

    assert same(run_tensor_ranks(2, rank)[1], make_run().step(10))
    (told,) = restores(bench)
    (disk, read_bytes, _), (peer, came_bytes, came_s) = told.arrived
    assert (told.tier, disk, peer) == ("disk", "disk", "peer")
    assert read_bytes == shard_bytes(bench.directory(10))
    assert 0 < came_bytes < handed_over(bench)
    assert came_s == EACH_S


@pytest.mark.parametrize("lost", [0, 1])
def test_a_copy_in_another_nodes_memory(tmp_path, lost):
    bench = Bench(tmp_path / "root")
    live(bench, tmp_path, 2, generation=1, to=14, save_at=10)
    for name in "ab":
        (tmp_path / f"node{lost}" / name).unlink()
    tier = open_tier(tmp_path / f"node{1 - lost}")
    (copy_bytes,) = {held.size_bytes for held in tier.held() if held.manifest.iteration == 14}
    tier.close()
    bench.events.clear()
    live(bench, tmp_path, 2, generation=2, to=14)
    assert sorted((each.arrived, each.givers) for each in restores(bench)) == [
        ((("memory", copy_bytes, 0.0),), ()),
        ((("peer", copy_bytes, 0.0),), (1 - lost,)),
    ]


def test_parts_come_from_where_they_lie(tmp_path):
    """Of three nodes one is new: it gets all of its part from others, which read theirs where it lies."""
    bench = Bench(tmp_path / "root")
    train(bench, tmp_path, dealt(3, seed=0, steps=2, wide=2048), nodes=["a", "b", "c"], to=4)
    (tmp_path / "b").rename(tmp_path / "gone")
    others = dealt(3, seed=9, wide=2048)

    def rank(group):
        tier = open_node(tmp_path, ["a", "new", "c"][group.rank])
        own = replace(bench, events=[])
        manager = own.manager(group=group, generation=2, tier=tier, memory_every_steps=1)
        manager.restore(others[group.rank])
        tier.close()
        return restores(own)

    ((first,), (new,), (last,)) = run_tensor_ranks(3, rank)
    rows_bytes = 101 // 3 * 2048 * 4 * 3  # of the largest parameter and its two moments
    ((way, came_bytes, _),) = new.arrived
    assert (way, new.givers) == ("peer", (0, 2))
    assert rows_bytes < came_bytes < 1.1 * rows_bytes
    for each in (first, last):
        at = {tier: size_bytes for tier, size_bytes, _ in each.arrived}
        assert rows_bytes < at["memory"] < 1.1 * rows_bytes
        assert at.get("peer", 0) < 0.1 * rows_bytes


def test_files_of_a_node_that_has_none(tmp_path):
    apart = Apart(tmp_path)
    apart.train([0, 1], 5, generation=1)
    apart.lose(1)
    apart.events.clear()
    apart.train([0, 1], generation=2)
    files_bytes = sum(path.stat().st_size for path in apart.iteration(0, 5).iterdir() if path.name != MANIFEST)
    disk = ("disk", shard_bytes(apart.iteration(0, 5)), 0.0)
    assert sorted((each.arrived, each.givers) for each in restores(apart)) == [
        ((disk,), ()),
        ((disk, ("peer", files_bytes, 0.0)), (0,)),
    ]


def test_each_byte_of_a_disk_is_read_by_one_rank(tmp_path):
    bench = Bench(tmp_path / "root")
    assert bench.manager(generation=1).save(make_run().step(10).tracked, meta(10)).saved
    run_tensor_ranks(
        3, lambda group: bench.manager(group=group, load_balanced=True).restore(make_run(seed=3).tracked).iteration
    )
    files_bytes = sum(path.stat().st_size for path in bench.directory(10).iterdir() if path.name != MANIFEST)
    found = [{tier: size_bytes for tier, size_bytes, _ in each.arrived} for each in restores(bench)]
    assert sum(each["disk"] for each in found) == files_bytes
    assert [each["disk"] + each["peer"] for each in found] == [files_bytes] * 3
    assert sorted(each.givers for each in restores(bench)) == [(0, 1), (0, 2), (1, 2)]


def test_weights_of_others_and_a_run_that_begins(tmp_path):
    bench = Bench(tmp_path / "root")
    bench.manager(generation=1).restore(make_run().tracked)
    assert [(each.tier, each.arrived) for each in restores(bench)] == [("none", ())]
    model = make_run().tracked["model"]
    (tmp_path / "theirs").mkdir()
    weights = {name: each.clone().contiguous() for name, each in model.state_dict().items()}
    save_file(weights, tmp_path / "theirs" / "model.safetensors")
    bench.events.clear()
    other = Bench(tmp_path / "other")
    settings = {"load_path": str(tmp_path / "theirs"), "no_load_optim": True}
    other.manager(**settings).restore(make_run(seed=3).tracked)
    ((told,),) = [each.arrived for each in restores(other)]
    assert told == ("disk", sum(each.nbytes for each in weights.values()), 0.0)
