"""Parts of a state in another node's memory: losing a node loses no part."""

from __future__ import annotations

import pytest
import torch

from elastic.checkpoint import passing
from elastic.checkpoint.passing import distance
from elastic.checkpoint.room import Room
from elastic.errors import PeerLost
from tests.harness.arenas import PLENTY, open_node
from tests.harness.checkpoints import Bench, meta
from tests.harness.ranks import run_tensor_ranks
from tests.unit.test_checkpoint_parts import check, dealt, make
from tests.unit.test_checkpoint_parts_memory import grow

NONE = Room(available_bytes=100, cgroup_bytes=None)


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("nodes", "far"),
    [
        (["a"], 0),
        (["a", "a"], 0),
        (["a", "b"], 1),
        (["a", "a", "b", "b"], 2),
        (["a", "a", "a", "b", "b", "b", "c", "c", "c"], 3),
        (["a", "b", "a", "b"], 1),
    ],
)
def test_every_copy_comes_to_another_node(nodes, far):
    assert distance(nodes) == far


def test_with_unequal_nodes_as_many_as_can_be():
    nodes = ["a", "a", "a", "b"]
    far = distance(nodes)
    assert sum(node != nodes[(rank + far) % 4] for rank, node in enumerate(nodes)) == 2


def train(bench, tmp_path, parts, *, nodes, to, slots=1, generation=1, opened=open_node, memory_every_steps=1):
    """A world restores, saves its second step and copies each later one."""

    def rank(group):
        own = parts[group.rank]
        tier = opened(tmp_path, nodes[group.rank], slot=group.rank % slots, slots=slots)
        manager = bench.manager(group=group, generation=generation, tier=tier, memory_every_steps=memory_every_steps)
        manager.restore(own)
        assert manager.save(own, meta(2, generation=generation)).saved
        for iteration in range(3, to + 1):
            manager.snapshot(grow(own), meta(iteration, generation=generation))
        manager.close()

    run_tensor_ranks(len(parts), rank)


def again(bench, tmp_path, *, nodes, slots=1):
    others = dealt(len(nodes), seed=9)

    def rank(group):
        tier = open_node(tmp_path, nodes[group.rank], slot=group.rank % slots, slots=slots)
        manager = bench.manager(group=group, generation=2, tier=tier, memory_every_steps=1)
        restored = manager.restore(others[group.rank])
        tier.close()
        return restored.tier, restored.iteration

    return run_tensor_ranks(len(nodes), rank), others


@pytest.mark.parametrize("lost", ["a", "b", "c"])
def test_the_loss_of_any_node_loses_no_part(tmp_path, lost):
    bench = Bench(tmp_path / "root")
    train(bench, tmp_path, dealt(3, seed=0, steps=2), nodes=["a", "b", "c"], to=4)
    (tmp_path / lost).rename(tmp_path / "gone")
    nodes = [each for each in ("a", "b", "c") if each != lost]
    found, others = again(bench, tmp_path, nodes=nodes)
    assert found == [("memory", 4)] * 2
    for rank, other in enumerate(others):
        check(other, grow(make(0, steps=2), by=2), rank, 2, 0)
    assert {event.tier for event in bench.events if event.kind == "checkpoint_saved"} == {"disk", "memory", "peer"}


@pytest.mark.parametrize("replaced", [False, True])
def test_two_workers_on_each_node(tmp_path, replaced):
    bench = Bench(tmp_path / "root")
    train(bench, tmp_path, dealt(4, seed=0, steps=2), nodes=["a", "a", "b", "b"], slots=2, to=5)
    (tmp_path / "a").rename(tmp_path / "gone")
    nodes = ["b", "b", "new", "new"] if replaced else ["b", "b"]
    found, others = again(bench, tmp_path, nodes=nodes, slots=2)
    assert found == [("memory", 5)] * len(nodes)
    for rank, other in enumerate(others):
        check(other, grow(make(0, steps=2), by=3), rank, len(nodes), 0)


def test_two_neighbouring_nodes_lost_mean_the_disk(tmp_path):
    bench = Bench(tmp_path / "root")
    train(bench, tmp_path, dealt(3, seed=0, steps=2), nodes=["a", "b", "c"], to=4)
    for node in ("a", "b"):
        (tmp_path / node).rename(tmp_path / f"gone-{node}")
    found, _ = again(bench, tmp_path, nodes=["new", "c"])
    assert found == [("disk", 2)] * 2


def test_a_rank_without_room_for_a_guest_holds_nobody_up(tmp_path):
    bench = Bench(tmp_path / "root")

    def opened(tmp_path, node, **others):
        return open_node(tmp_path, node, guests=node != "b", **others)

    train(bench, tmp_path, dealt(3, seed=0, steps=2), nodes=["a", "b", "c"], to=4, opened=opened)
    notices = [event.text for event in bench.events if event.kind == "notice"]
    assert sum("rank 1 has no memory for a copy" in each for each in notices) == 1
    (tmp_path / "c").rename(tmp_path / "gone")  # its part is with a
    found, _ = again(bench, tmp_path, nodes=["a", "b"])
    assert found == [("memory", 4)] * 2


def test_a_rank_that_gave_its_memory_up_holds_nobody_up(tmp_path):
    bench = Bench(tmp_path / "root")

    def opened(tmp_path, node, **others):
        return open_node(tmp_path, node, room=PLENTY if node != "b" else NONE, **others)

    train(bench, tmp_path, dealt(3, seed=0, steps=2), nodes=["a", "b", "c"], to=4, opened=opened)
    notices = [event.text for event in bench.events if event.kind == "notice"]
    assert sum("no room for the memory tier" in each for each in notices) == 1
    found, _ = again(bench, tmp_path, nodes=["a", "b", "c"])
    assert found == [("disk", 2)] * 3, "its part is nowhere"


@pytest.mark.parametrize("at", range(1, 7))
def test_cut_off_while_copies_are_passed_on(tmp_path, monkeypatch, at):
    """Two steps are passed on by three ranks, one after another: whoever is cut off first, a whole step is left."""
    bench, passed = Bench(tmp_path / "root"), []
    real = passing.failpoint

    def cut(name):
        passed.append(name)
        if len(passed) == 6 + at:
            raise PeerLost("it was cut off")
        real(name)

    monkeypatch.setattr(passing, "failpoint", cut)
    with pytest.raises(PeerLost):
        train(bench, tmp_path, dealt(3, seed=0, steps=2), nodes=["a", "b", "c"], to=5)
    assert len(passed) <= 6 + 3 * (1 + (at > 3)), "nobody took part in a later step"
    monkeypatch.setattr(passing, "failpoint", real)
    (tmp_path / "b").rename(tmp_path / "gone")
    found, others = again(bench, tmp_path, nodes=["a", "c"])
    ((tier, iteration),) = set(found)
    assert (tier, iteration) == ("memory", 3 if at <= 3 else 4)
    for rank, other in enumerate(others):
        check(other, grow(make(0, steps=2), by=iteration - 2), rank, 2, 0)


def test_what_came_altered_is_not_kept(tmp_path, monkeypatch):
    bench, sums = Bench(tmp_path / "root"), []
    words = passing._words

    def altered(data):
        sums.append(1)
        return words(data) + len(sums)

    monkeypatch.setattr(passing, "_words", altered)
    train(bench, tmp_path, dealt(2, seed=0, steps=2), nodes=["a", "b"], to=3)
    assert any("is not what it sent" in event.text for event in bench.events if event.kind == "notice")
    (tmp_path / "a").rename(tmp_path / "gone")
    found, _ = again(bench, tmp_path, nodes=["b", "new"])
    assert found == [("disk", 2)] * 2


def test_after_a_restart_guests_hold_what_their_new_owners_have(tmp_path):
    bench = Bench(tmp_path / "root")
    train(bench, tmp_path, dealt(3, seed=0, steps=2), nodes=["a", "b", "c"], to=4)
    (tmp_path / "c").rename(tmp_path / "gone")
    parts = dealt(2, seed=9)

    def rank(group):
        tier = open_node(tmp_path, "ab"[group.rank])
        manager = bench.manager(group=group, generation=2, tier=tier, memory_every_steps=1)
        restored = manager.restore(parts[group.rank])
        manager.snapshot(parts[group.rank], meta(restored.iteration, generation=2))
        tier.close()
        return restored.iteration

    assert run_tensor_ranks(2, rank) == [4, 4]
    (tmp_path / "b").rename(tmp_path / "gone-b")
    others = [make(9)]
    tier = open_node(tmp_path, "a")
    restored = bench.manager(generation=3, tier=tier, memory_every_steps=1).restore(others[0])
    assert (restored.tier, restored.iteration) == ("memory", 4)
    check(others[0], grow(make(0, steps=2), by=2), 0, 1, 0)
