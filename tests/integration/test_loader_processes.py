"""Loader processes: the same batches, and no process that hinders or outlives the trainer."""

import multiprocessing
import os
import random
import select
import signal
import subprocess
import sys

import pytest

from elastic.data.carrier import Carrier, Transport
from elastic.data.fetch import NumberedDataset
from elastic.errors import DataError
from elastic.plan.order import Order
from tests.harness.data_simulation import check
from tests.harness.datasets import Failing, Holding, Lying, Stuck
from tests.harness.loading import LENGTH, SEED, flat, make, run_undisturbed

pytestmark = pytest.mark.integration


def test_processes_bring_the_same_batches_through_a_change():
    expected = run_undisturbed(total=60)
    steps = []
    loader = make(total=60, num_workers=2)
    for _ in range(2):
        steps.append(flat(loader.next_step()))
        loader.commit()
    next(loader.next_step())  # fetched ahead and dropped
    position = loader.position
    loader.close()
    loaders = [make(total=60, world_size=2, rank=rank, position=position, num_workers=1) for rank in range(2)]
    while not loaders[0].finished:
        steps.append([micro for part in loaders for micro in flat(part.next_step())])
        for part in loaders:
            part.commit()
    for part in loaders:
        part.close()
    assert steps == expected


def test_processes_ignore_the_signals_that_the_trainer_decides_on():
    loader = make(num_workers=1)
    next(loader.next_step())
    (process,) = loader._carrier.processes
    os.kill(process.pid, signal.SIGTERM)
    os.kill(process.pid, signal.SIGINT)
    assert len(list(loader.next_step())) == 4
    loader.close()
    assert not process.is_alive()


@pytest.mark.exhaustive
def test_a_process_stuck_in_an_item_is_ended_by_force():
    dataset = Stuck(LENGTH)
    carrier = Carrier(
        NumberedDataset(dataset, seed=0, collate=None), batches=[[(0, 0)]], transport=Transport(num_workers=1)
    )
    (process,) = carrier.processes
    assert dataset.entered.wait(timeout=30)
    carrier.close()
    assert process.exitcode == -signal.SIGKILL


def test_an_error_in_a_process_names_the_sample():
    first = Order(length=LENGTH, seed=SEED).index(0)
    loader = make(Failing(LENGTH, at=first), num_workers=1)
    with pytest.raises(OSError, match=f"while fetching item {first} of the data set"):
        next(loader.next_step())
    loader.close()


def test_a_length_that_lies_is_found_out_in_a_process():
    loader = make(Lying(LENGTH), num_workers=1)
    with pytest.raises(DataError, match=r"says that it holds 41 items, but item \d+ raised IndexError"):
        list(loader.next_step())
    loader.close()


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_what_cannot_be_pickled_is_refused_where_it_must_be(context):
    loader = make(Holding(LENGTH), num_workers=1, multiprocessing_context=context)
    with pytest.raises(DataError, match="cannot be sent to loader processes"):
        next(loader.next_step())
    loader.close()
    assert not multiprocessing.active_children()


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # more processes than cores
def test_more_and_fewer_processes_bring_the_same():
    """2, then 8, then 1, each for a stretch of the run, through the end of an epoch."""
    expected, steps, position = run_undisturbed(total=60), [], 0
    for workers, most in ((2, 2), (8, 2), (1, 9)):
        loader = make(total=60, num_workers=workers, prefetch_factor=8, position=position)
        while not loader.finished and most > 0:
            steps.append(flat(loader.next_step()))
            position, most = loader.commit(), most - 1
        loader.close()
    assert steps == expected


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # more processes than cores
@pytest.mark.parametrize("kind", ["map", "mixed", "stream"])
def test_random_lives_with_processes(kind):
    assert check(kind, range(25), most_workers=3).counts["crashes"] > 10


def numbered(number):
    random.seed(number)


def test_processes_started_anew_bring_the_same_batches():
    expected = flat(make().next_step())
    loader = make(num_workers=1, multiprocessing_context="spawn", worker_init_fn=numbered)
    assert flat(loader.next_step()) == expected
    loader.close()


TRAINER = """
import sys, os, signal
from tests.harness.loading import make
loader = make(num_workers=2)
next(loader.next_step())
print(*[process.pid for process in loader._carrier.processes], flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("end", "code"), [("killed", -signal.SIGKILL), ("forgets to close", 0)])
def test_processes_do_not_outlive_the_trainer(end, code):
    trainer = subprocess.run(
        [sys.executable, "-W", "error", "-c", TRAINER, end], capture_output=True, text=True, timeout=60, check=False
    )
    assert trainer.returncode == code, trainer.stderr
    assert trainer.stderr == ""
    pids = [int(word) for word in trainer.stdout.split()]
    assert len(pids) == 2
    for pid in pids:
        wait_until_gone(pid)


def wait_until_gone(pid):
    """Wait for the end of a process that is not ours to wait for."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        gone, _, _ = select.select([handle], [], [], 10)
        assert gone, f"process {pid} outlived its trainer by 10 s"
    finally:
        os.close(handle)
