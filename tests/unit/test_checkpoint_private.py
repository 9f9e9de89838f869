"""Nodes without a shared file system: each has a directory of its own, and no node's loss loses the run."""

from __future__ import annotations

import contextlib
import errno
import json

import pytest
import torch

from elastic.checkpoint.commit import finish
from elastic.checkpoint.draft import common_of, draft_of
from elastic.checkpoint.holdings import Holding, copies_of, merge, route
from elastic.checkpoint.image import heap_image
from elastic.checkpoint.keeping import read_back
from elastic.checkpoint.kinship import RootFacts, agree_lineage
from elastic.checkpoint.layout import MANIFEST, TRACKER, ShardKind
from elastic.checkpoint.manifest import digest
from elastic.checkpoint.places import number
from elastic.checkpoint.policy import Found
from elastic.checkpoint.root import RootIdentity, claim
from elastic.checkpoint.saving_apart import begin_saving
from elastic.checkpoint.seams import CommitVerdict
from elastic.checkpoint.shards import Shard
from elastic.checkpoint.storage import PosixStorage
from elastic.errors import CheckpointError, Fenced, NothingToRestore, RunMismatch
from tests.harness.apart import Apart
from tests.harness.checkpoints import make_run, meta, same
from tests.harness.faulty_storage import Died, Fault, FaultyStorage
from tests.harness.ranks import run_tensor_ranks


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def apart(tmp_path):
    return Apart(tmp_path)


def truth(steps: int):
    return make_run().step(steps)


class TestSaving:
    def test_every_node_keeps_the_same_whole_iteration(self, apart):
        runs = apart.train([0, 1, 2], 5, 10, generation=1)
        assert all(same(run, truth(10)) for run in runs)
        manifests = [apart.iteration(place, 10).joinpath(MANIFEST).read_bytes() for place in range(3)]
        assert len(set(manifests)) == 1
        assert digest(manifests[0]) == apart.committer.kept.manifest_digest
        names = {tuple(sorted(path.name for path in apart.iteration(place, 10).iterdir())) for place in range(3)}
        assert len(names) == 1
        assert [apart.path(place).joinpath(TRACKER).read_text() for place in range(3)] == ["10"] * 3
        assert apart.kinds().count("checkpoint_saved") == 2
        assert not list(apart.root.glob("*/.tmp*"))

    def test_beside_the_training_just_as_well(self, apart):
        """What is saved is the state of the step after which it was begun, on every node."""

        def work(manager, run, rank):
            run.step(5)
            assert not manager.save(run.tracked, meta(5), wait=False).saved
            run.step(3)
            assert manager.settle().saved
            return run

        apart.session([0, 1], work, generation=1, save_mode="async")
        runs = apart.train([0, 1, 2], 10, generation=2, save_mode="async")
        assert all(same(run, truth(10)) for run in runs)
        assert apart.kinds().count("checkpoint_saved") == 2
        assert all(apart.iteration(place, 5).exists() for place in (0, 1, 2))

    def test_ranks_of_a_node_share_its_copy_out(self, apart):
        apart.train([0, 0, 1, 1, 1], 5, generation=1)
        shards = [sorted(path.name for path in apart.iteration(place, 5).glob("*.safetensors")) for place in (0, 1)]
        assert shards[0] == shards[1]
        assert len(shards[0]) == 3
        apart.lose(0)
        runs = apart.train([0, 1], generation=2)
        assert all(same(run, truth(5)) for run in runs)

    def test_each_node_makes_room(self, apart):
        apart.train([0, 1], *range(1, 7), generation=1, save_max=2)
        for place in (0, 1):
            assert sorted(path.name for path in apart.path(place).glob("iteration_*")) == [
                "iteration_00000005",
                "iteration_00000006",
            ]

    @pytest.mark.parametrize("rank", [0, 2])
    def test_a_node_whose_disk_is_full_is_left_out_and_told(self, apart, rank):
        apart.train([0, 1, 2], 5, generation=1)
        apart.storages[rank] = storage = FaultyStorage(at=1, number=errno.ENOSPC)
        runs = apart.train([0, 1, 2], 10, generation=2)
        assert storage.fired
        assert apart.committer.kept.iteration == 10
        assert f"iteration 10 is not kept everywhere: rank {rank}: " in apart.notices()
        assert not apart.iteration(rank, 10).exists()
        del apart.storages[rank]
        again = apart.train([0, 1, 2], generation=3)
        assert all(same(one, other) for one, other in zip(runs, again, strict=True))
        assert apart.iteration(rank, 10).exists()

    def test_without_a_node_that_can_write_the_save_failed(self, apart):
        apart.train([0, 1], 5, generation=1)
        for rank in (0, 1):
            apart.storages[rank] = FaultyStorage(at=1)
        apart.train([0, 1], 10, generation=2)
        assert apart.committer.kept.iteration == 5
        assert "rank 0: OSError" in apart.reasons("checkpoint_failed")
        assert "rank 1: OSError" in apart.reasons("checkpoint_failed")
        assert not list(apart.root.glob("*/.tmp*"))

    def test_a_replica_that_differs_is_left_out(self, apart):
        def work(manager, run, rank):
            run.step(5)
            if rank == 1:
                with torch.no_grad():
                    run.tracked["model"].norm.bias.add_(1)
            return manager.save(run.tracked, meta(5))

        results = apart.session([0, 1, 2], work, generation=1)
        assert all(result.saved for result in results)
        assert "place 1: its checkpoint-" in apart.notices()
        runs = apart.train([0, 1, 2], generation=2)
        assert all(same(run, truth(5)) for run in runs)

    @pytest.mark.parametrize("stale", [True, False])
    def test_a_refused_commit_counts_nowhere(self, apart, stale):
        apart.train([0, 1], 5, generation=1)
        granted = apart.committer.answer

        def work(manager, run, rank):
            apart.committer.answer = CommitVerdict(granted=False, reason="refused", stale=stale)
            run.step(5)
            try:
                return manager.save(run.tracked, meta(10, generation=2)).saved
            except Fenced:
                return "fenced"

        assert apart.session([0, 1], work, generation=2) == ["fenced" if stale else False] * 2
        apart.committer.answer = granted
        assert apart.committer.kept.iteration == 5
        assert apart.path(1).joinpath(TRACKER).read_text() == "5"


def test_parts_that_no_rank_has_whole_come_to_every_node(apart):
    """As with parameters that are dealt out: each rank writes its own file, and a lost node takes nothing with it."""

    def work(group):
        root = str(apart.path(group.rank))
        claim(root, job_id="job")
        shard = Shard(
            name=f"model-{group.rank:07d}-0000003.safetensors", kind=ShardKind.MODEL,
            tensors={"w": torch.full((4, 2), float(group.rank))},
        )  # fmt: skip
        draft = draft_of(meta(5), identity=RootIdentity(job_id="job", lineage="l"), values={}, health=None,
                         world_size=3, has_optimizer=False, ancestors=())  # fmt: skip
        saving = begin_saving(
            draft, common_of(meta(5), {}, None), lambda: [heap_image(shard)], root=root, storage=PosixStorage(),
            group=group, places=number(["x", "y", "z"], rank=group.rank), committer=apart.committer,
            nonce=lambda: f"{group.rank}",
        )  # fmt: skip
        return finish(saving)

    outcomes = run_tensor_ranks(3, work)
    assert all(outcome.committed and not outcome.left_out for outcome in outcomes)
    for place in range(3):
        assert len(list(apart.iteration(place, 5).glob("model-*"))) == 3
        assert read_back(str(apart.iteration(place, 5)), storage=PosixStorage()) is None


class TestRestoring:
    @pytest.mark.parametrize("lost", [0, 1, 2])
    def test_a_node_that_comes_empty_gets_it_from_the_others(self, apart, lost):
        apart.train([0, 1, 2], 5, 10, generation=1)
        apart.lose(lost)
        runs = apart.train([0, 1, 2], generation=2)
        assert all(same(run, truth(10)) for run in runs)
        wanted = apart.committer.kept.manifest_digest
        here = copies_of(str(apart.path(lost)), manifest_digest=wanted, storage=PosixStorage())
        assert here == ["iteration_00000010"]
        assert f"travel to the places [{lost}]" in apart.notices()
        apart.train([0, 1, 2], 15, generation=3)
        assert apart.committer.kept.iteration == 15

    def test_whoever_remains_is_enough(self, apart):
        apart.train([0, 1, 2], 5, generation=1)
        apart.lose(0)
        apart.lose(2)
        assert all(same(run, truth(5)) for run in apart.train([3, 1, 4, 5], generation=2))

    def test_the_newest_of_all_counts_though_the_first_node_is_behind(self, apart):
        apart.train([0, 1], 5, generation=1)
        apart.train([1], 10, generation=2)
        runs = apart.train([0, 1], generation=3)
        assert all(same(run, truth(10)) for run in runs)

    def test_damage_in_one_place_is_made_good_from_another(self, apart):
        apart.train([0, 1], 5, 10, generation=1)
        for place, kind in ((0, "model"), (1, "opt")):
            (path,) = apart.iteration(place, 10).glob(f"*-{kind}-*")
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)
        runs = apart.train([0, 1], generation=2)
        assert all(same(run, truth(10)) for run in runs)
        assert "checkpoint_rejected" not in apart.kinds()

    def test_damage_in_all_places_falls_back_together(self, apart):
        apart.train([0, 1], 5, 10, generation=1)
        for place in (0, 1):
            (path,) = apart.iteration(place, 10).glob("*-model-*")
            path.write_bytes(b"x" * path.stat().st_size)
        runs = apart.train([0, 1], generation=2)
        assert all(same(run, truth(5)) for run in runs)
        assert "no node has a sound checkpoint-model" in apart.reasons("checkpoint_rejected")

    def test_a_newcomer_without_room_is_named_and_nothing_older_is_taken_for_it(self, apart):
        apart.train([0, 1], 5, generation=1)
        apart.train([0], 10, generation=2)
        apart.storages[1] = storage = FaultyStorage(at=1, number=errno.ENOSPC)
        with pytest.raises(CheckpointError, match=r"the node of rank 1 lacks .* No space left"):
            apart.train([0, 1], generation=3)
        assert storage.fired
        assert same(apart.train([0], generation=4)[0], truth(10))

    def test_all_disks_lost_is_no_beginning(self, apart):
        apart.train([0, 1], 5, generation=1)
        apart.lose(0)
        apart.lose(1)
        with pytest.raises(NothingToRestore, match="iteration 5 was committed"):
            apart.train([0, 1], generation=2)

    def test_two_runs_cannot_be_one(self, apart):
        apart.train([0], 5, generation=1)
        apart.committer.kept = None
        apart.train([1], 5, generation=1)
        apart.committer.kept = None
        with pytest.raises(RunMismatch, match="place 1 holds"):
            apart.train([0, 1], generation=2)

    def test_without_a_record_the_newest_that_is_whole_counts(self, apart):
        apart.train([0, 1], 5, 10, generation=1)
        apart.committer.kept = None
        apart.lose(0)
        assert all(same(run, truth(10)) for run in apart.train([0, 1], generation=2))


LONG = pytest.mark.exhaustive


@pytest.mark.parametrize(
    ("rank", "fault"),
    [
        (1, Fault.DIE),
        (0, Fault.TEAR),
        pytest.param(0, Fault.DIE, marks=LONG),
        pytest.param(0, Fault.DIE_AFTER, marks=LONG),
        pytest.param(1, Fault.DIE_AFTER, marks=LONG),
        pytest.param(1, Fault.TEAR, marks=LONG),
    ],
)
def test_a_death_at_any_operation_of_a_save_costs_nothing(tmp_path, rank, fault):
    """As long as operations are left to die at: then the next start goes on from 5 or 10, bit for bit, on all nodes."""
    at = adopted = 0
    while True:
        apart = Apart(tmp_path / f"{at}")
        apart.train([0, 1], 5, generation=1)
        apart.storages[rank] = storage = FaultyStorage(at=at, fault=fault)
        with contextlib.suppress(Died):
            apart.train([0, 1], 10, generation=2)
        if not storage.fired:
            break
        apart.storages.clear()
        committed = apart.committer.kept.iteration
        runs = apart.train([0, 1], generation=3)
        assert all(run.steps >= committed and same(run, truth(run.steps)) for run in runs), at
        adopted += runs[0].steps > committed
        again = apart.train([1, 0], 15, generation=4)
        assert all(same(run, truth(15)) for run in again), at
        assert apart.committer.kept.iteration == 15
        at += 1
    assert at > 8
    assert adopted, "what was complete on one node only was adopted"


def holding(place, *, here=(), lacking=(), iteration=5, name="d5", **found):
    facts = {"place": f"iteration_{iteration:08d}", "iteration": iteration, "lineage": "l", "manifest_digest": name}
    return Holding(place=place, found=Found(**(facts | found)), here=here, lacking=lacking)


def test_an_iteration_is_whole_if_each_file_is_somewhere():
    (found,) = merge([holding(0, here=("a",), lacking=("b",), problem="b"), holding(1, here=("b",), lacking=("a",))])
    assert found.problem is None
    (found,) = merge([holding(0, here=("a",), lacking=("b",)), holding(1, here=(), lacking=("a", "b"))])
    assert found.problem == "b is on no node"


def test_one_set_aside_in_one_place_only_is_in_place():
    (found,) = merge([holding(0, aside=True), holding(1)])
    assert not found.aside


def test_holdings_cross_as_json():
    one = holding(2, here=("a",), ancestors=("x", "y"))
    assert Holding.from_plain(json.loads(json.dumps(one.to_plain()))) == one


def test_files_come_from_those_who_sent_least():
    routes = route([{"a": 4, "b": 4}, {"a": 4, "b": 4}, {}], wanted={"a": 4, "b": 4})
    assert [(each.name, each.source, each.targets) for each in routes.deliveries] == [("a", 0, (2,)), ("b", 1, (2,))]
    assert route([{"a": 1}, {}], wanted={"a": 1, "b": 2}).fault
    assert not route([{"a": 1}], wanted={"a": 1}).deliveries


def test_whose_lineage_counts():
    empty, full = RootFacts(lineage="e", held=()), RootFacts(lineage="f", held=("f",))
    other = RootFacts(lineage="o", held=("o",))
    assert agree_lineage([empty, full], recorded=None).lineage == "f"
    assert agree_lineage([empty, empty], recorded=None).lineage == "e"
    assert agree_lineage([full, other], recorded="o").lineage == "o"
    assert agree_lineage([full, other], recorded=None).lineage is None
