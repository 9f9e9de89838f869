"""Checkpoints in an object store: no rename there, and still nothing is lost, whatever request fails or is the last."""

from __future__ import annotations

import contextlib
import sys

import pytest
import torch

import elastic
from elastic.checkpoint.locating import AnyStorage, is_url, local_dir, storage_for
from elastic.checkpoint.object_storage import ObjectStorage
from elastic.checkpoint.objects import TRIES, PatientStore
from elastic.checkpoint.pruning import plan_pruning, prune
from elastic.checkpoint.reader import Reader
from elastic.checkpoint.root import claim
from elastic.checkpoint.seams import AloneGroup, CommitVerdict
from elastic.cli import main
from elastic.clock import ManualClock
from elastic.errors import ElasticError, Fenced, RunMismatch, UsageError
from tests.harness.checkpoints import Bench, CheckpointSettings, make_run, meta, same
from tests.harness.faulty_storage import Died
from tests.harness.objects import ROOT, Fault, MemoryStore, ObjectBench
from tests.harness.ranks import run_tensor_ranks
from tests.harness.training import dataset, model, per_sample


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def bench():
    return ObjectBench()


@pytest.fixture
def storage(bench):
    return bench.storage()


def trained(bench, *saves, store=None, generation=1, **settings):
    """Restore, then train to and save these iterations; the run."""
    manager, run = bench.manager(store=store, generation=generation, **settings), make_run(seed=generation)
    run.steps = manager.restore(run.tracked).iteration
    if not run.steps:
        run = make_run()
        manager = bench.manager(store=store, generation=generation, **settings)
    for iteration in saves:
        run.step(iteration - run.steps)
        manager.save(run.tracked, meta(iteration, generation=generation))
    return run


def truth(steps):
    return make_run().step(steps)


class TestDirectories:
    def test_a_directory_is_found_under_its_name_alone(self, storage):
        temp, place = f"{ROOT}/.tmp-10-3-ab", f"{ROOT}/iteration_00000010"
        storage.make_dir(ROOT)
        storage.make_dir(temp)
        storage.write(f"{temp}/a", b"one")
        assert (storage.names(ROOT), storage.names(temp)) == ([".tmp-10-3-ab"], ["a"])
        storage.publish(temp, place)
        assert (storage.names(ROOT), storage.names(place)) == (["iteration_00000010"], ["a"])
        assert (storage.read(f"{place}/a"), storage.size_bytes(f"{place}/a")) == (b"one", 3)
        assert storage.read_part(f"{place}/a", 1, 9) == b"ne"
        assert storage.facts(f"{place}/a").size_bytes == 3
        assert storage.size_bytes(place) is None
        assert storage.names(temp) == []

    def test_a_name_is_never_taken_over(self, storage, bench):
        place = f"{ROOT}/iteration_00000010"
        for temp in (f"{ROOT}/.tmp-10-3-a", f"{ROOT}/.tmp-10-4-b"):
            storage.make_dir(temp)
            storage.write(f"{temp}/a", temp.encode())
        storage.publish(f"{ROOT}/.tmp-10-3-a", place)
        with pytest.raises(FileExistsError):
            storage.publish(f"{ROOT}/.tmp-10-4-b", place)
        assert storage.read(f"{place}/a").endswith(b"-a")
        storage.remove_tree(f"{ROOT}/.tmp-10-4-b")
        assert len(bench.objects) == 2

    def test_what_was_removed_takes_no_more_files(self, storage):
        temp = f"{ROOT}/.tmp-10-3-ab"
        storage.make_dir(temp)
        storage.remove_tree(temp)
        with pytest.raises(FileNotFoundError):
            storage.write(f"{temp}/a", b"late")
        with pytest.raises(FileNotFoundError):
            storage.publish(temp, f"{ROOT}/iteration_00000010")

    def test_content_with_two_names_outlives_the_loss_of_one(self, storage, bench):
        temp, place = f"{ROOT}/.tmp-10-3-ab", f"{ROOT}/iteration_00000010"
        storage.make_dir(temp)
        storage.write(f"{temp}/a", b"one")
        name = bench.objects[f"{temp}.dir"]
        storage.publish(temp, place)
        bench.objects[f"{temp}.dir"] = name  # as if the writer had died before it took the old name away
        storage.remove_tree(temp)
        assert storage.read(f"{place}/a") == b"one"
        storage.remove_tree(place)
        assert bench.objects == {}

    def test_files_are_made_once_and_replaced_when_asked(self, storage):
        assert storage.create(f"{ROOT}/x", b"1")
        assert not storage.create(f"{ROOT}/x", b"2")
        with pytest.raises(FileExistsError):
            storage.write(f"{ROOT}/x", b"3")
        assert storage.read(f"{ROOT}/x") == b"1"
        storage.replace(f"{ROOT}/x", b"4")
        assert storage.read(f"{ROOT}/x") == b"4"

    def test_a_plain_prefix_that_was_copied_in_is_a_directory_too(self, storage, bench):
        place = f"{ROOT}/iteration_00000010"
        bench.objects[f"{place}/a"] = b"copied"
        assert (storage.names(ROOT), storage.names(place)) == (["iteration_00000010"], ["a"])
        storage.publish(place, f"{ROOT}/.aside-iteration_00000010-x")
        assert storage.names(ROOT) == [".aside-iteration_00000010-x"]
        assert storage.read(f"{ROOT}/.aside-iteration_00000010-x/a") == b"copied"


class TestPatience:
    def patient(self, **fault):
        store, clock, told = MemoryStore({"k": b"value"}, **fault), ManualClock(), []
        return PatientStore(store, clock=clock, tell=told.append), store, clock, told

    def test_a_failed_request_is_repeated_and_counted(self):
        patient, store, clock, told = self.patient(at=0, times=2)
        assert patient.get("k") == b"value"
        assert (store.fired, patient.repeated, len(told)) == (2, 2, 2)
        assert 0.5 < clock.monotonic_s() < 1

    def test_not_for_ever(self):
        patient, store, clock, _ = self.patient(at=0, times=99)
        with pytest.raises(OSError, match="503"):
            patient.put("k", b"x")
        assert store.fired == TRIES
        assert clock.monotonic_s() < 10

    def test_what_is_final_is_not_repeated(self):
        patient, store, _, _ = self.patient()
        with pytest.raises(FileNotFoundError):
            patient.get("none")
        assert len(store.requests) == 1

    @pytest.mark.parametrize("span", [(0, None), (0, 5), (1, 4), (2, 99)])
    def test_a_cut_answer_is_not_the_object(self, span):
        patient, store, _, _ = self.patient(at=0, fault=Fault.CUT)
        assert patient.get("k", *span) == b"value"[slice(*span)]
        assert store.fired == 1

    def test_a_lost_answer_does_not_make_us_a_stranger_to_our_own_object(self):
        patient, _, _, _ = self.patient(at=0, fault=Fault.LOST)
        assert patient.put_new("new", b"ours")
        assert not patient.put_new("new", b"ours")
        other, _, _, _ = self.patient(at=0, fault=Fault.FAIL)
        assert not other.put_new("k", b"another's")


class TestRuns:
    def test_a_run_goes_on_and_makes_room(self, bench):
        run = trained(bench, *range(1, 8), save_max=2)
        assert bench.committer.kept.iteration == 7
        assert bench.storage().names(ROOT) == [
            ".trash-iteration_00000005-" + bench.storage().names(ROOT)[0].rpartition("-")[2],
            "elastic_run.json",
            "iteration_00000006",
            "iteration_00000007",
            "latest_checkpointed_iteration.txt",
        ]
        again = trained(bench, generation=2)
        assert same(run, again)
        assert same(again, truth(7))

    def test_all_ranks_write_and_any_world_size_reads(self, bench):
        run = truth(5)
        run_tensor_ranks(3, lambda group: bench.manager(group=group).save(run.tracked, meta(5)))
        others = [make_run(seed=9) for _ in range(2)]
        run_tensor_ranks(2, lambda g: bench.manager(group=g, load_balanced=True).restore(others[g.rank].tracked))
        assert all(same(run, other) for other in others)

    def test_damage_is_found_and_the_one_before_is_taken(self, bench):
        trained(bench, 5, 10)
        name = next(key for file, key in bench.content(10).items() if "-model-" in file)
        bench.objects[name] = bench.objects[name][:-1] + bytes([bench.objects[name][-1] ^ 1])
        assert same(trained(bench, generation=2), truth(5))
        assert "checkpoint_rejected" in bench.kinds()

    def test_an_old_writer_destroys_nothing(self, bench):
        """A zombie of generation 1 saves the iteration that generation 2 has committed meanwhile."""
        trained(bench, 5)
        zombie, late = bench.manager(), make_run().step(5)
        zombie.restore(late.tracked)
        run = trained(bench, 10, generation=2)
        kept = bench.committer.kept
        bench.committer.answer = CommitVerdict(granted=False, reason="an older generation")
        with torch.no_grad():
            late.tracked["model"].norm.bias.add_(1)
        with pytest.raises(Fenced):
            zombie.save(late.step(5).tracked, meta(10))
        assert not zombie.save(late.step().tracked, meta(11)).saved
        bench.committer.answer = CommitVerdict(granted=True, reason="ours")
        assert bench.committer.kept == kept
        assert same(trained(bench, generation=3), run)

    def test_another_runs_root_is_refused(self, bench):
        trained(bench, 5)
        with pytest.raises(RunMismatch):
            claim(ROOT, job_id="another", storage=bench.storage())

    def test_pruning(self, bench):
        trained(bench, 5, 10, 15)
        storage = bench.storage()
        plan = plan_pruning(ROOT, keep=1, storage=storage)
        prune(ROOT, plan, storage=storage, nonce=lambda: "n")
        assert [name for name in storage.names(ROOT) if "iteration_0" in name] == ["iteration_00000015"]
        assert not [key for key in bench.objects if "/5-" in key or "/.tmp-5" in key]
        assert same(trained(bench, generation=2), truth(15))

    def test_weights_start_another_run_on_disk(self, bench, tmp_path):
        run = trained(bench, 5)
        other = make_run(seed=7)
        settings = CheckpointSettings(save_path=str(tmp_path), load_path=ROOT, no_load_optim=True)
        reader = Reader(
            settings, None, group=AloneGroup(), storage=AnyStorage({"mem": bench.storage()}), emit=print,
            committer=bench.committer, nonce=lambda: "n", clock=ManualClock(),
        )  # fmt: skip
        assert reader.restore(other.tracked).tier == "disk"
        assert torch.equal(run.tracked["model"].body.weight, other.tracked["model"].body.weight)


def after_a_fault(at, fault, times=1):
    """A bench on which a save of iteration 10 met a fault at its request number `at`, and the store that made it."""
    bench = ObjectBench()
    trained(bench, 5)
    store = MemoryStore(bench.objects, at=at, fault=fault, times=times)
    with contextlib.suppress(Died, ElasticError):
        trained(bench, 10, store=store, generation=2)
    return bench, store


EACH = [7, pytest.param(1, marks=pytest.mark.exhaustive)]
"""Every how many-th request is tried."""


@pytest.mark.parametrize("each", EACH)
@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOST, Fault.CUT])
def test_one_fault_at_any_request_is_survived_within_the_save(fault, each):
    at = 0
    while True:
        bench, store = after_a_fault(at, fault)
        if not store.fired:
            break
        assert bench.committer.kept.iteration == 10, at
        assert same(trained(bench, generation=3), truth(10)), at
        at += each
    assert at > 30


@pytest.mark.parametrize("each", EACH)
@pytest.mark.parametrize("fault", [Fault.DIE, Fault.DIE_AFTER])
def test_a_death_at_any_request_never_costs_the_last_good_one(fault, each):
    at = adopted = 0
    while True:
        bench, store = after_a_fault(at, fault)
        if not store.fired:
            break
        committed = bench.committer.kept.iteration
        run = trained(bench, generation=3)
        assert run.steps >= committed
        assert same(run, truth(run.steps)), at
        adopted += run.steps > committed
        assert same(trained(bench, 15, 20, generation=4), truth(20)), at
        left = [name for name in bench.storage().names(ROOT) if name.startswith(".tmp")]
        assert not left, (at, left)
        at += each
    assert at > 30
    assert adopted or each > 1


def test_a_store_that_is_away_fails_the_save_and_nothing_else():
    for at in (0, 15, 30):
        bench, store = after_a_fault(at, Fault.FAIL, times=10_000)
        assert store.fired
        assert bench.committer.kept.iteration == 5
        assert same(trained(bench, generation=3), truth(5))


class TestUrls:
    def test_what_a_url_is(self):
        assert is_url("s3://bucket/x")
        assert not is_url("/a/b")
        assert not is_url("output/checkpoint")
        assert local_dir("s3://bucket/a/../b") == "output/s3/bucket/a/b"
        assert local_dir("/a/b") == "/a/b"

    @pytest.mark.parametrize("url", ["s3://key:secret@bucket/x", "s3://bucket/x?token=secret"])
    def test_secrets_have_no_place_in_it(self, url):
        with pytest.raises(UsageError) as told:
            storage_for(url)
        assert "secret" not in str(told.value)
        assert "AWS_PROFILE" in str(told.value)

    def test_an_unknown_protocol_is_told(self):
        with pytest.raises(UsageError, match="nosuch://"):
            storage_for("nosuch://bucket/x")

    def test_fsspec_itself(self, tmp_path):
        """The same over the library's own store in memory."""
        storage = storage_for("memory://bench/root")
        bench = Bench(tmp_path)
        run = make_run().step(5)
        where = {"save_path": "memory://bench/root"}
        assert bench.manager(storage=storage, **where).save(run.tracked, meta(5)).saved
        other = make_run(seed=3)
        assert bench.manager(storage=storage_for("memory://bench/root"), **where).restore(other.tracked).iteration == 5
        assert same(run, other)
        storage.remove_tree("memory://bench/root")

    def test_a_run_there_is_accounted_for_by_its_name(self, tmp_path, monkeypatch, capsys):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["train.py"])
        root = "memory://bench/account"
        train_there = {"steps": 4, "global_batch_size": 10, "micro_batch_size": 4, "save_path": root}
        with elastic.Session(environ={}, **train_there) as run:
            net = run.parallelize(model())
            run.track(model=net)
            for step in run.steps(dataset()):
                with step:
                    for batch in step.micro_batches():
                        step.backward(per_sample(net, batch))
        assert main(["audit", root]) == 0
        assert "every sample was used once" in capsys.readouterr().out
        assert main(["plan", root, "--nodes", "2"]) == 0
        assert "iteration 4: 40 samples used" in capsys.readouterr().out
        storage_for(root).remove_tree(root)

    def test_nothing_is_asked_before_it_is_needed(self):
        assert isinstance(ObjectStorage(None), ObjectStorage)
