"""A signal to a worker itself: the step is finished and saved, and what the user's program handles stays its own."""

import faulthandler
import os
import signal
import sys

import pytest
import torch

import elastic
from elastic.events import CheckpointSaved, Restored, read_records
from elastic.history import audit_run
from elastic.session.leaving import LeaveOnSignal
from tests.harness.training import dataset, model, per_sample


@pytest.fixture(autouse=True)
def as_in_a_terminal():
    """What is ignored from outside (under nohup, in a shell's background) stays ignored: here nothing is."""
    usual = dict.fromkeys((signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1), signal.SIG_DFL)
    before = {number: signal.signal(number, how) for number, how in usual.items()}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, how in before.items():
        signal.signal(number, how)


@pytest.fixture
def leaving():
    with LeaveOnSignal() as leaving:
        yield leaving


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_the_first_signal_is_noted(leaving, number, capfd):
    signal.raise_signal(number)
    assert leaving.received is number
    assert f"{number.name}: finishing the step" in capfd.readouterr().err


def test_the_second_does_what_it_always_did(leaving):
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_afterwards_everything_is_as_before(leaving):
    leaving.__exit__()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_others_handle_or_ignore_is_left_to_them():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR1)
    try:
        with LeaveOnSignal() as leaving:
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            signal.raise_signal(signal.SIGUSR1)
            assert leaving.received is None
    finally:
        faulthandler.unregister(signal.SIGUSR1)
        signal.signal(signal.SIGHUP, before)


def test_a_forked_helper_ends_as_it_would(leaving):
    hears, says = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(says, b"!")  # until it is up, the interpreter drops signals
        signal.pause()
        os._exit(0)
    assert os.read(hears, 1) == b"!"
    os.close(hears)
    os.close(says)
    os.kill(pid, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
    assert leaving.received is None


def train(save_path, *, signalled_in=0, number=signal.SIGTERM):
    """An own loop of six steps; in one of them a signal comes."""
    with elastic.Session(environ={}, steps=6, global_batch_size=10, micro_batch_size=4, save_path=save_path) as run:
        net = run.parallelize(model())
        optimizer = torch.optim.AdamW(net.parameters())
        run.track(model=net, optimizer=optimizer)
        for step in run.steps(dataset()):
            with step:
                for batch in step.micro_batches():
                    step.backward(per_sample(net, batch))
                if step.iteration == signalled_in:
                    signal.raise_signal(number)
                optimizer.step()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_world_of_one_ends_after_a_step_that_is_saved_and_goes_on_from_there(tmp_path, monkeypatch, number):
    monkeypatch.setattr(sys, "argv", ["own_loop.py"])
    with pytest.raises(SystemExit) as ended:
        train(str(tmp_path), signalled_in=2, number=number)
    assert ended.value.code == 75
    train(str(tmp_path))
    told = [record.event for record in read_records(tmp_path / "events")]
    assert [event.iteration for event in told if isinstance(event, CheckpointSaved)] == [3, 6]
    assert [event.iteration for event in told if isinstance(event, Restored)] == [0, 3]
    assert audit_run(tmp_path).exact
