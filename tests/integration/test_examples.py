"""The example jobs as users start them, alone: they learn, they go on after a death, and their account is exact."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from elastic.data.audit import account
from elastic.events import StepCommitted, read_records
from elastic.plan.order import Order

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ("--training.global_batch_size=100", "--training.micro_batch_size=16")


def start(*command, save_path):
    """Run one of our commands as a world of one; returns its exit code."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command, f"--checkpoint.save_path={save_path}"],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode


def losses_of(save_path):
    """Loss of each iteration, as the run's last word on it."""
    steps = [r.event for r in read_records(save_path / "events") if isinstance(r.event, StepCommitted)]
    return {step.iteration: step.loss for step in steps}


def account_of(save_path, *, length=1000):
    return account(read_records(save_path / "events"), order=Order(length=length, seed=0))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    save_path = tmp_path_factory.mktemp("undisturbed")
    assert start("elastic/worker.py", "--job.target=jobs.sentiment:job", *EXAMPLE, save_path=save_path) == 0
    return save_path


def test_the_custom_job_learns_with_an_exact_account(undisturbed):
    losses = losses_of(undisturbed)
    assert len(losses) == 40
    assert losses[40] < 0.5 * losses[1]
    found = account_of(undisturbed)
    assert found.exact
    assert (found.steps, found.samples, found.proved_by_ranges_steps) == (40, 4000, 40)


def test_the_own_loop_does_what_the_job_does_bit_for_bit(undisturbed, tmp_path):
    assert start("-m", "jobs.own_loop", "--data.num_workers=2", save_path=tmp_path) == 0
    assert losses_of(tmp_path) == losses_of(undisturbed)
    assert account_of(tmp_path).exact


DYING = ("elastic/worker.py", "--job.target=tests.harness.dying_job:job", "--checkpoint.save_interleaved_steps=6")


def test_a_death_while_fetching_costs_only_what_was_not_saved(undisturbed, tmp_path):
    steps = "--training.steps=40"
    saved = "--checkpoint.save_mode=sync"  # so that the last save is durable whenever it dies
    assert start(*DYING, *EXAMPLE, steps, saved, "--job.options.lives=1567", save_path=tmp_path) == -signal.SIGKILL
    assert len(losses_of(tmp_path)) == 15
    assert start(*DYING, *EXAMPLE, steps, "--job.options.lives=100000", save_path=tmp_path) == 0
    assert losses_of(tmp_path) == losses_of(undisturbed)
    found = account_of(tmp_path)
    assert found.problems == ()
    assert found.exact
    assert (found.steps, found.samples, found.recomputed_steps, found.recomputed_samples) == (40, 4000, 3, 300)


@pytest.mark.exhaustive
def test_another_batch_size_after_a_death_uses_every_sample_once(tmp_path):
    first = ("--training.global_batch_size=64", "--training.micro_batch_size=7", "--training.steps=30")
    assert start(*DYING, *first, "--job.options.lives=1000", save_path=tmp_path) == -signal.SIGKILL
    second = ("--training.global_batch_size=90", "--training.micro_batch_size=8", "--training.steps=20")
    assert start(*DYING, *second, "--job.options.lives=100000", save_path=tmp_path) == 0
    found = account_of(tmp_path)
    assert found.problems == ()
    assert found.exact
    # 12 steps of 64 were saved, 1032 samples were left for steps of 90, the last one short
    assert (found.steps, found.samples, found.recomputed_steps) == (12 + 12, 1800, 3)


def test_the_default_job_trains_on_the_users_text(tmp_path):
    text = tmp_path / "text.jsonl"
    text.write_text('{"text": "the quick brown fox jumps over the lazy dog."}\n' * 60)
    small = ("--model.layers=1", "--model.width=32", "--model.heads=2", "--model.context=16")
    batch = ("--training.global_batch_size=8", "--training.micro_batch_size=3", "--training.steps=40")
    rates = ("--optimizer.learning_rate=0.01", "--optimizer.warmup_samples=40")
    save_path = tmp_path / "run"
    command = ("elastic/worker.py", f"--data.path={text}", *small, *batch, *rates)
    assert start(*command, save_path=save_path) == 0
    losses = losses_of(save_path)
    assert sum(losses[i] for i in range(36, 41)) < 0.8 * sum(losses[i] for i in range(1, 6))
    assert account_of(save_path, length=(60 * 45 - 1) // 16).exact
