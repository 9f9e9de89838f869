"""A session as a world of one, in this process: what a user writes, what goes wrong, and how it ends."""

import dataclasses
import sys

import pytest
import torch

from elastic.checkpoint.outcome import Outcome
from elastic.clock import SYSTEM_CLOCK
from elastic.config.load import with_overrides
from elastic.config.model import Settings
from elastic.errors import ElasticError, Fenced, PeerLost, Regroup, StoreUnavailable, UsageError
from elastic.events import (
    CheckpointSaved,
    Notice,
    OrderChosen,
    Record,
    Restored,
    RunFinished,
    StepCommitted,
    read_records,
)
from elastic.history import audit_run, told_order
from elastic.job import Job
from elastic.link import Answer, NoLink
from elastic.loop import run_job
from elastic.session.committer import AgentCommitter, Bystander, choose_committer
from elastic.session.ending import describe
from elastic.world import World
from tests.harness.training import dataset, model, per_sample, told_of, weighted


def loop(session, *, loss=per_sample, body=None, net=None):
    """What a user writes."""
    losses = []
    with session as run:
        net = run.parallelize(net or model())
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
        run.track(model=net, optimizer=optimizer)
        for step in run.steps(dataset()):
            with step:
                for batch in step.micro_batches():
                    step.backward(loss(net, batch))
                optimizer.step()
            losses.append(step.totals.loss)
            if body is not None:
                body(step)
    return losses


def test_it_trains_saves_and_says_so(make_session, tmp_path):
    losses = loop(make_session(save_interleaved_steps=4))
    assert [event.loss for event in told_of(tmp_path, StepCommitted)] == losses
    assert [event.iteration for event in told_of(tmp_path, CheckpointSaved)] == [4, 6]
    assert told_of(tmp_path, RunFinished) == [RunFinished(iteration=6, consumed_samples=60)]


def test_a_finished_run_says_so_and_does_nothing(make_session, tmp_path):
    loop(make_session())
    assert loop(make_session()) == []
    assert len(told_of(tmp_path, RunFinished)) == 2
    assert len(told_of(tmp_path, StepCommitted)) == 6


def test_it_goes_on_where_it_was_saved(make_session, tmp_path):
    whole = loop(make_session(save_path=str(tmp_path / "whole")))

    def die(step):
        if step.iteration == 5:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop(make_session(save_interleaved_steps=2), body=die)
    # The step is committed only after the body of the loop: that of step 5 was not, and step 4 is saved.
    assert loop(make_session()) == whole[4:]
    assert [event.iteration for event in told_of(tmp_path, Restored)] == [0, 4]


def test_own_loop_and_job_are_the_same_bit_for_bit(make_session, tmp_path):
    for loss in (per_sample, weighted):
        name = loss.__name__
        losses = loop(make_session(save_path=str(tmp_path / name)), loss=loss)
        overrides = {"global_batch_size": 10, "micro_batch_size": 4, "save_path": str(tmp_path / f"{name}-job")}
        job = Job(
            model=lambda world: model(),
            dataset=dataset,
            loss=loss,
            optimizer=lambda net: torch.optim.AdamW(net.parameters(), lr=0.02),
            until=6,
        )
        run_job(job, with_overrides(Settings(), overrides))
        records = read_records(tmp_path / f"{name}-job" / "events")
        assert [r.event.loss for r in records if isinstance(r.event, StepCommitted)] == losses


def test_a_job_s_schedule_multiplies_the_first_rates_also_after_a_restart(tmp_path):
    seen = []

    class Watched(torch.optim.SGD):
        def step(self, closure=None):
            seen.append(self.param_groups[0]["lr"])
            return super().step(closure)

    job = Job(
        model=lambda world: model(),
        dataset=dataset,
        loss=per_sample,
        optimizer=lambda net: Watched(net.parameters(), lr=2.0),
        schedule=lambda samples: samples / 100,
        max_grad_norm=0.5,
    )
    for steps in (2, 4):
        overrides = {"global_batch_size": 10, "micro_batch_size": 4, "steps": steps, "save_path": str(tmp_path)}
        run_job(job, with_overrides(Settings(), overrides))
    assert seen == pytest.approx([0.2, 0.4, 0.6, 0.8])


class TestMisuse:
    def code(self, act):
        """The exit code that an error of ours ends the process with."""
        with pytest.raises(SystemExit) as ended:
            act()
        return ended.value.code

    def test_settings_that_cannot_be(self, make_session, caplog):
        assert self.code(lambda: make_session(global_batch_size=0).__enter__()) == 64
        assert self.code(lambda: make_session(gobal_batch_size=8).__enter__()) == 64
        assert "Did you mean 'global_batch_size'?" in caplog.text

    def test_a_save_path_that_cannot_be_written(self, make_session, tmp_path, caplog):
        (tmp_path / "file").write_text("")
        assert self.code(lambda: make_session(save_path=str(tmp_path / "file" / "x")).__enter__()) == 64
        assert str(tmp_path / "file" / "x") in caplog.text

    def test_a_save_path_in_use(self, make_session, caplog):
        with make_session():
            assert self.code(lambda: make_session().__enter__()) == 64
        assert "another process holds" in caplog.text
        with make_session():
            """And free again after both have ended."""

    def test_steps_before_parallelize(self, make_session, caplog):
        def act():
            with make_session() as run:
                next(run.steps(dataset()))

        assert self.code(act) == 64
        assert "before run.parallelize" in caplog.text

    def test_a_name_tracked_twice_and_what_has_no_state(self, make_session, caplog):
        def twice():
            with make_session() as run:
                run.track(model=model())
                run.track(model=model())

        def stateless():
            with make_session() as run:
                run.track(model=model(), seed=7)

        assert [self.code(twice), self.code(stateless)] == [64, 64]
        assert "track(model=…) was called twice" in caplog.text
        assert "track(seed=…) got a int" in caplog.text

    def test_a_step_that_was_not_entered(self, make_session, caplog):
        def act():
            with make_session() as run:
                run.parallelize(model())
                for _ in run.steps(dataset()):
                    pass

        assert self.code(act) == 64
        assert "must be used as `with step:`" in caplog.text

    def test_a_data_set_that_is_none(self, make_session, caplog):
        for data in ([], iter([])):

            def act(data=data):
                with make_session() as run:
                    run.parallelize(model())
                    next(run.steps(data))

            assert self.code(act) == 64
        assert "list is empty" in caplog.text
        assert "list_iterator has no length" in caplog.text

    def test_the_users_own_exception_comes_through_as_it_is(self, make_session):
        with pytest.raises(ZeroDivisionError), make_session():
            raise ZeroDivisionError

    def test_a_sys_exit_of_the_user_too(self, make_session):
        def act():
            with make_session():
                sys.exit(3)

        assert self.code(act) == 3


def test_a_run_whose_last_step_cannot_be_saved_is_not_finished(make_session, tmp_path, monkeypatch, caplog):
    full = Outcome(committed=False, stale=False, reason="no space", manifest_digest="", total_bytes=0)
    monkeypatch.setattr("elastic.checkpoint.commit.Saving.advance", lambda self: full)
    with pytest.raises(SystemExit) as ended:
        loop(make_session(save_interleaved_steps=4))
    assert ended.value.code == 70
    assert "last step of the run could not be saved: no space" in caplog.text
    assert len(told_of(tmp_path, StepCommitted)) == 6, "a save on the way that failed has not ended it"
    assert told_of(tmp_path, RunFinished) == []


def test_a_run_that_is_not_to_be_saved_finishes(make_session, tmp_path):
    loop(make_session(enable_save=False))
    assert len(told_of(tmp_path, RunFinished)) == 1


def test_a_regroup_is_saved_and_ends_with_its_code(make_session, tmp_path, monkeypatch):
    monkeypatch.setattr(NoLink, "regroup_wanted", lambda self: True)
    with pytest.raises(SystemExit) as ended:
        loop(make_session())
    assert ended.value.code == 111
    assert [event.iteration for event in told_of(tmp_path, CheckpointSaved)] == [1]


def test_a_regroup_at_the_last_step_is_a_finished_run(make_session, tmp_path, monkeypatch):
    monkeypatch.setattr(NoLink, "regroup_wanted", lambda self: True)
    loop(make_session(steps=1))
    assert len(told_of(tmp_path, RunFinished)) == 1


def test_another_batch_size_is_told_and_goes_on_at_the_same_sample(make_session, tmp_path):
    loop(make_session())
    loop(make_session(global_batch_size=15, steps=6))
    told = [event.text for event in told_of(tmp_path, Notice)]
    assert any("global batch 10 -> 15" in text and "going on at sample 60 exactly" in text for text in told)
    assert told_of(tmp_path, RunFinished)[-1] == RunFinished(iteration=8, consumed_samples=90)


def test_the_account_of_an_own_loop_needs_none_of_its_code(make_session, tmp_path):
    loop(make_session())
    found = audit_run(tmp_path / "run")
    assert found.exact
    assert found.samples == 60
    (told,) = told_of(tmp_path, OrderChosen)
    record = Record(time_s=0.0, node="n", rank=0, generation=0, event=dataclasses.replace(told, order_version=99))
    assert told_order([]) is None
    with pytest.raises(UsageError, match="order is of version 99"):
        told_order([record])


def test_history_refuses_what_is_no_run(tmp_path):
    with pytest.raises(ElasticError, match="holds no events"):
        audit_run(tmp_path)


class TestCommitter:
    class Agent(NoLink):
        present = True

        def __init__(self, answer):
            self.answer = answer

        def ask(self, what, *, value=None):
            return self.answer

    def test_no_record_is_told_from_a_record_that_could_not_be_read(self):
        def committer(answer):
            return AgentCommitter(self.Agent(answer), generation=1, page=None, clock=SYSTEM_CLOCK)

        assert committer(Answer(granted=True, reason="")).record() is None
        with pytest.raises(StoreUnavailable, match="etcd is away"):
            committer(Answer(granted=False, reason="etcd is away")).record()

    def test_only_rank_0_commits(self, tmp_path):
        def choose(link, rank):
            return choose_committer(link, world=World(rank=rank, size=2), save_path=str(tmp_path), clock=SYSTEM_CLOCK)

        bystander = choose(NoLink(), 1)
        assert isinstance(bystander, Bystander)
        assert bystander.record() is None
        agent = self.Agent(Answer(granted=False, reason="old", stale=True))
        assert isinstance(choose(agent, 0), AgentCommitter)


class TestLastWords:
    def caught(self, error):
        try:
            raise error
        except type(error) as caught:
            return describe(caught, step=4)

    def test_our_errors_speak_for_themselves(self):
        for error, code in ((PeerLost("gone"), 110), (Regroup("x"), 111), (Fenced("y"), 76)):
            found = self.caught(error)
            assert (found.exit_code, found.text, found.step) == (code, str(error), 4)

    def test_the_signature_is_of_kind_and_place_not_of_words(self):
        first, second = self.caught(ValueError("sample 1")), self.caught(ValueError("sample 2"))
        assert first.signature == second.signature
        assert self.caught(KeyError("sample 1")).signature != first.signature
        assert first.exit_code == 1
        assert first.text.rstrip().endswith("ValueError: sample 1")
        assert "Traceback" in first.text

    def test_an_error_that_was_never_raised(self):
        assert describe(ValueError("x"), step=0).signature


def test_a_loop_left_with_break_keeps_its_last_step(make_session, tmp_path):
    with make_session() as run:
        net = run.parallelize(model())
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
        run.track(model=net, optimizer=optimizer)
        for step in run.steps(dataset()):
            with step:
                for batch in step.micro_batches():
                    step.backward(per_sample(net, batch))
                optimizer.step()
            if step.iteration == 3:
                break
    assert [event.iteration for event in told_of(tmp_path, StepCommitted)] == [1, 2, 3]
    assert [event.iteration for event in told_of(tmp_path, CheckpointSaved)] == [3]
    assert not told_of(tmp_path, RunFinished)
    assert len(loop(make_session())) == 3, "the next start goes on after it"
