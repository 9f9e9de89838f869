"""What was committed and is not here: others may hold it, and are waited for before a run ends or goes back."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import torch

from elastic.checkpoint.layout import MANIFEST
from elastic.checkpoint.policy import Signs
from elastic.clock import ManualClock
from elastic.config.choices import PathScope
from elastic.config.model import CheckpointSettings
from elastic.errors import ExitCode, Lack, NewestElsewhere, NothingToRestore, RunMismatch, StateElsewhere
from elastic.link import Failure
from elastic.session.ending import describe
from elastic.session.roots import settle
from elastic.world import World
from tests.harness.checkpoints import AloneGroup, Bench, RecordCommitter, make_run, meta, same


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def bench(tmp_path):
    """A run that has saved 2, 4 and 6."""
    made = Bench(tmp_path / "root")
    manager, run = made.going_on(generation=1, save_max=9), make_run()
    for iteration in (2, 4, 6):
        run.step(2)
        manager.save(run.tracked, meta(iteration))
    return made


def restore(bench, **settings):
    run = make_run(seed=9)
    return run, bench.manager(generation=2, **settings).restore(run.tracked)


def damage(bench, iteration):
    for part in bench.directory(iteration).glob("*.safetensors"):
        data = bytearray(part.read_bytes())
        data[-1] ^= 1
        part.write_bytes(data)


def test_an_empty_disk_says_whether_others_may_hold_the_state(bench):
    shutil.rmtree(bench.root)
    with pytest.raises(StateElsewhere, match="its files are elsewhere or gone"):
        restore(bench, others_may_hold=True)
    shutil.rmtree(bench.root)
    with pytest.raises(RunMismatch, match="its files are elsewhere or gone"):
        restore(bench)


@pytest.mark.parametrize(("others", "kind"), [(True, StateElsewhere), (False, NothingToRestore)])
def test_so_does_a_root_of_this_run_without_its_iterations(bench, others, kind):
    for iteration in (2, 4, 6):
        shutil.rmtree(bench.directory(iteration))
    with pytest.raises(NothingToRestore, match="iteration 6 was committed, but nothing there") as caught:
        restore(bench, others_may_hold=others)
    assert type(caught.value) is kind


@pytest.mark.parametrize(("others", "kind"), [(True, StateElsewhere), (False, NothingToRestore)])
def test_so_does_one_where_all_that_is_there_is_damaged(bench, others, kind):
    for iteration in (2, 4):
        shutil.rmtree(bench.directory(iteration))
    damage(bench, 6)
    with pytest.raises(NothingToRestore, match="every iteration there is damaged") as caught:
        restore(bench, others_may_hold=others)
    assert type(caught.value) is kind


def test_a_node_that_was_away_does_not_go_back_while_others_may_come(bench):
    shutil.rmtree(bench.directory(6))
    with pytest.raises(NewestElsewhere, match="iteration_00000004 is older than what was committed last, which is not"):
        restore(bench, others_may_hold=True)
    assert bench.committer.kept.iteration == 6
    bench.events.clear()
    run, restored = restore(bench)
    assert restored.iteration == 4
    assert same(run, make_run().step(4))
    assert [event.text for event in bench.events if event.kind == "notice"] == [
        f"{bench.directory(4)} is older than what was committed last, which is not here: the run goes back"
    ]


def test_to_go_back_is_committed(bench):
    """Else the next start would wait again, and refuse copies in memory for being older than what was given up."""
    shutil.rmtree(bench.directory(6))
    restore(bench)
    kept = bench.committer.kept
    assert (kept.iteration, kept.consumed_samples, kept.generation) == (4, 32, 2)
    assert (bench.root / "latest_checkpointed_iteration.txt").read_text() == "4"
    bench.events.clear()
    assert restore(bench, others_may_hold=True)[1].iteration == 4
    assert bench.kinds().count("notice") == 0


@pytest.mark.parametrize("leftover", ["another", "aside", "half"])
def test_what_has_its_number_is_not_it(bench, leftover):
    """A save that never counted, or that others have made again since."""
    place, kept = bench.directory(6), bench.committer.kept
    if leftover == "aside":
        place.rename(bench.root / f".aside-{place.name}-0")
    if leftover == "half":
        (place / MANIFEST).unlink()
    bench.committer.kept = replace(kept, manifest_digest="0" * 64)
    with pytest.raises(NewestElsewhere):
        restore(bench, others_may_hold=True)


def test_what_is_marked_unhealthy_is_passed_over_as_ever(bench):
    manager, run = bench.going_on(generation=1, save_max=9), make_run().step(6)
    manager.save(run.step(2).tracked, meta(8, signs=Signs(loss=float("nan"))))
    assert bench.committer.kept.iteration == 8
    assert restore(bench, others_may_hold=True)[1].iteration == 6
    assert bench.committer.kept.iteration == 8


def test_nor_where_what_was_committed_is_here(bench):
    run, restored = restore(bench, others_may_hold=True)
    assert (restored.iteration, bench.kinds().count("notice")) == (6, 0)
    assert same(run, make_run().step(6))


@pytest.mark.parametrize("gone", [True, False])
def test_others_are_waited_for_where_it_is_damaged_here(bench, gone):
    if gone:
        next(bench.directory(6).glob("*.safetensors")).unlink()
    else:
        damage(bench, 6)
    with pytest.raises(NewestElsewhere, match="iteration_00000004 is older than what was committed last"):
        restore(bench, others_may_hold=True)
    assert bench.committer.kept.iteration == 6
    assert restore(bench)[1].iteration == 4


def test_nobody_is_waited_for_where_the_save_that_follows_it_is_complete(bench):
    run = make_run()
    manager = bench.manager(generation=2, save_max=9)
    manager.restore(run.tracked)
    run.step(2)
    committed = bench.committer.kept
    manager.save(run.tracked, meta(8, generation=2))
    bench.committer.kept = replace(committed, generation=2)  # as if it had died before its commit
    shutil.rmtree(bench.directory(6))
    assert restore(bench, others_may_hold=True)[1].iteration == 8


@pytest.mark.parametrize(
    ("world", "settings", "others"),
    [
        ({}, {}, True),
        ({"size": 2, "local_size": 2}, {}, True),  # one node, that may share its directory with nobody
        ({}, {"save_path_scope": PathScope.PRIVATE}, True),
        ({}, {"save_path_scope": PathScope.SHARED}, False),
        ({"size": 2, "local_size": 1}, {}, False),  # two nodes, which were found to share it
        ({}, {"save_path": "s3://bucket/run"}, False),
        ({"goes_back": True}, {}, False),
        ({"agent_socket": None}, {}, False),  # there is nobody to wait with
    ],
)
def test_who_may_hold_more(tmp_path, world, settings, others):
    checkpoint = CheckpointSettings(**{"save_path": str(tmp_path), **settings})
    place = World(**{"agent_socket": "there", **world})
    roots = settle(
        checkpoint, None, world=place, group=AloneGroup(), committer=RecordCommitter(), clock=ManualClock(), emit=print
    )
    assert roots.others_may_hold is others


@pytest.mark.parametrize(
    ("error", "lacks"),
    [(StateElsewhere("x"), Lack.ALL), (NewestElsewhere("x"), Lack.NEWEST), (NothingToRestore("x"), Lack.NOTHING)],
)
def test_the_agent_hears_what_is_lacking(error, lacks):
    told = describe(error, step=0)
    assert (told.lacks, told.exit_code) == (lacks, ExitCode.USAGE)
    again = Failure.from_plain({**vars(told), "lacks": str(told.lacks)})
    assert again == told
    assert again.lacks is lacks
