"""Batch modes: everything is counted in samples, so that runs of any world size lie on each other."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.checkpoint.policy import save_due
from elastic.checkpoint.restored import Restored
from elastic.config.load import with_overrides
from elastic.config.model import Settings
from elastic.distributed.group import Alone
from elastic.distributed.replicate import Replica
from elastic.errors import ConfigError
from elastic.events import Evaluated, Notice, StepCommitted, read_records
from elastic.job import Evaluation, Job
from elastic.loop import run_job
from elastic.plan.batch_mode import BatchMode, RateRule, batching
from elastic.plan.progress import warmup_cosine
from tests.harness.ranks import run_tensor_ranks
from tests.harness.training import course, dataset, model, per_sample, train

PER_RANK = {"batch": "per_rank", "rank_batch_size": 6, "micro_batch_size": 3, "global_batch_size": 10, "steps": 12}


def of_world(world_size, rule):
    return batching(
        BatchMode.PER_RANK, world_size=world_size, global_batch_size=16, rank_batch_size=16, rule=RateRule(rule)
    )


@pytest.mark.parametrize(("rule", "factor"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_the_learning_rate_follows_by_rule(rule, factor):
    found = of_world(4, rule)
    assert (found.global_batch_size, found.rate_factor) == (64, factor)
    assert "4 ranks of 16 samples make a global batch of 64" in found.reason
    assert of_world(1, rule).rate_factor == 1.0


@pytest.mark.parametrize("rule", list(RateRule))
def test_a_fixed_global_batch_never_changes_the_rate(rule):
    for world_size in range(1, 9):
        found = batching(
            BatchMode.FIXED_GLOBAL, world_size=world_size, global_batch_size=10, rank_batch_size=7, rule=rule
        )
        assert (found.global_batch_size, found.rate_factor) == (10, 1.0)


def test_every_rank_takes_its_batch_and_every_sample_is_used_once():
    """3 ranks, then 2, then 1: the run ends at the same sample, though steps are of 18, 12 and 6."""
    used, state = [], Restored(reason="a test")
    for size in (3, 2, 1):
        runs = run_tensor_ranks(size, lambda group, state=state: train(group, restored=state, **PER_RANK))
        events = [run.events for run in runs]
        if size > 1:  # as if all had been lost after the third step
            events = [part[:3] for part in events]
        assert all(event.stop - event.start == 6 * size for part in events for event in part[:-1])
        used += sorted(pair for part in events for event in part for pair in event.ranges)
        last = events[0][-1]
        state = Restored(
            reason="a test", iteration=last.iteration, consumed_samples=last.stop, run_digest=last.run_digest
        )
    samples = [sample for start, stop in used for sample in range(start, stop)]
    assert samples == list(range(120))


def test_the_steps_that_are_left_follow_the_world_and_asking_moves_nothing():
    """120 samples in steps of 6 for each rank; after 54 of them at three ranks one is left."""
    after = Restored(reason="a test", iteration=3, consumed_samples=54)
    for size, restored, left in ((1, None, 20), (2, None, 10), (3, None, 7), (1, after, 11), (2, after, 6)):
        at = course(size=size, restored=restored, **PER_RANK)
        began = at.consumed_samples
        assert [at._plan.steps_left(at.consumed_samples) for _ in range(3)] == [left] * 3
        assert at.consumed_samples == at._loader.position == began


def test_the_rate_is_one_curve_over_samples_at_any_world_size():
    """No function of the samples, and no scheduler of torch stepped once a step, knows how many ranks there are."""

    def rates(group):
        found, schedulers = {}, []

        def body(net, optimizer, step):
            if not schedulers:
                schedulers.append(torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5))
            for batch in step.micro_batches():
                step.backward(per_sample(net, batch))
            optimizer.step()
            schedulers[0].step()
            found[step.stop] = (
                warmup_cosine(step.stop, warmup_samples=30, total_samples=80),
                schedulers[0].get_last_lr()[0],
            )

        train(group, body=body, steps=8)
        return found

    expected = rates(Alone())
    assert len(set(expected.values())) == 8
    for size in (2, 4):
        assert run_tensor_ranks(size, rates) == [expected] * size


def test_with_its_rule_a_batch_that_grows_has_the_curve_of_one_that_does_not():
    """Plain descent goes as far in one large step as in several small ones if the rate grows with the batch.

    Over samples the losses are the same within 2 percent at each point; without the rule they are far apart.
    """

    def curve(group, rule):
        def body(net, optimizer, step):
            for batch in step.micro_batches():
                step.backward(per_sample(net, batch))
            for parameter in net.parameters():
                parameter.data.add_(parameter.grad, alpha=-0.05 * step.rate_factor)

        options = {"rank_batch_size": 6, "micro_batch_size": 3, "global_batch_size": 6, "steps": 160}
        events = train(group, body=body, batch="per_rank", rate_rule=rule, **options).events
        points = [[event.loss for event in events if start < event.stop <= start + 120] for start in range(0, 960, 120)]
        return [sum(losses) / len(losses) for losses in points]

    expected = curve(Alone(), "linear")
    assert expected[-1] < 0.6 * expected[0]
    for size in (2, 4):
        found = run_tensor_ranks(size, lambda group: curve(group, "linear"))[0]
        assert found == pytest.approx(expected, rel=0.02)
    assert run_tensor_ranks(4, lambda group: curve(group, "none"))[0][-1] > 1.5 * expected[-1]


def test_saves_come_at_the_same_samples_at_any_world_size():
    """Each 2 steps of 10 samples, whatever a step holds: at the first boundary behind each multiple of 20."""
    for size, saved in ((1, [24, 42, 60, 84, 102, 120]), (3, [36, 54, 72, 90, 108, 120])):
        at = course(size=size, **PER_RANK)
        found = []
        net = model()
        for _ in iter(lambda at=at: at.finished, True):
            step = at.next_step(Alone(), (Replica(net, Alone()),), lambda: False)
            with step:
                for batch in step.micro_batches():
                    step.backward(per_sample(net, batch))
            at.commit(step)
            due = save_due(at.iteration, enable_save=True, every_steps=2, last_saved=None, counted=at.counted)
            if due.due:
                found.append(at.consumed_samples)
        assert found == saved


def test_a_checkpoint_counts_steps_of_the_batch_that_it_names():
    """Another system's reader multiplies the two."""
    state = Restored(reason="a test", iteration=3, consumed_samples=54)
    meta = course(size=3, restored=state, **PER_RANK).save_meta()
    assert (meta.global_batch_size, meta.global_step, meta.step_num) == (18, 3, 3)


@given(sizes=st.lists(st.integers(1, 70), min_size=1, max_size=40), every=st.integers(1, 5))
@settings(deadline=None, max_examples=50)
def test_no_multiple_is_passed_without_a_save(sizes, every):
    position, saves, passed = 0, 0, 0
    for number, size in enumerate(sizes, start=1):
        counted = range(position // 10 + 1, (position + size) // 10 + 1)
        position += size
        due = save_due(number, enable_save=True, every_steps=every, last_saved=None, counted=counted).due
        multiples = [step for step in counted if step % every == 0]
        assert due == bool(multiples)
        saves += due
        passed += len(multiples)
    assert passed == position // 10 // every


def test_what_comes_now_and_then_comes_in_samples():
    for size, expected in ((1, [30, 60, 90, 120]), (2, [36, 60, 96, 120])):
        at, found, net = course(size=size, **PER_RANK), [], model()
        while not at.finished:
            step = at.next_step(Alone(), (Replica(net, Alone()),), lambda: False)
            with step:
                for batch in step.micro_batches():
                    step.backward(per_sample(net, batch))
            at.commit(step)
            if step.crosses(30):
                found.append(step.stop)
        assert found == expected


def test_a_job_trains_with_the_rate_of_its_batch(tmp_path):
    """A world of one with half the batch that the rate was chosen for; the schedule goes by samples as ever."""
    seen = []

    class Watched(torch.optim.SGD):
        def step(self, closure=None):
            seen.append(self.param_groups[0]["lr"])
            return super().step(closure)

    def run(schedule, name, **overrides):
        seen.clear()
        job = Job(
            model=lambda world: model(),
            dataset=dataset,
            loss=per_sample,
            optimizer=lambda net: Watched(net.parameters(), lr=1.0),
            schedule=schedule,
        )
        given = {"batch": "per_rank", "rank_batch_size": 5, "global_batch_size": 10, "micro_batch_size": 5, "steps": 2}
        run_job(job, with_overrides(Settings(), {**given, "save_path": str(tmp_path / name), **overrides}))
        return list(seen)

    assert run(None, "none") == [1.0] * 4
    assert run(None, "linear", rate_rule="linear") == [0.5] * 4
    assert run(lambda samples: samples / 20, "both", rate_rule="linear") == [0.125, 0.25, 0.375, 0.5]


@pytest.mark.parametrize("size", [5, 10, 20])
def test_a_job_is_evaluated_at_the_same_samples_whatever_its_batch(tmp_path, size):
    def measure(net, batch):
        assert not net.training
        losses = per_sample(net, batch)
        return {"loss": (losses.sum(), len(losses)), "samples": (len(losses), 1 / 25)}

    job = Job(
        model=lambda world: model(dropout=0.5),
        dataset=dataset,
        loss=per_sample,
        optimizer=lambda net: torch.optim.SGD(net.parameters(), lr=0.0),
        evaluation=Evaluation(dataset=lambda: dataset(), measure=measure, every_samples=40),
    )
    overrides = {"batch": "per_rank", "rank_batch_size": size, "global_batch_size": 10, "micro_batch_size": 5}
    run_job(job, with_overrides(Settings(), {**overrides, "steps": 12, "save_path": str(tmp_path)}))
    found = [r.event for r in read_records(tmp_path / "events") if isinstance(r.event, Evaluated)]
    assert [event.consumed_samples for event in found] == [40, 80, 120]
    assert [event.iteration for event in found] == [40 // size, 80 // size, 120 // size]
    values = [dict(event.values) for event in found]
    assert values[0] == values[1] == values[2]
    assert values[0]["samples"] == pytest.approx(101 / (21 / 25))


def test_exact_numerics_need_a_batch_that_stays():
    with pytest.raises(ConfigError, match="the batch itself depends on the world size"):
        with_overrides(Settings(), {**PER_RANK, "numerics": "exact"})


def test_the_batch_is_told(tmp_path):
    events = []
    course(size=2, events=events, **PER_RANK, rate_rule="sqrt")
    assert any(isinstance(event, Notice) and "2 ranks of 6 samples" in event.text for event in events)
    assert not any(isinstance(event, StepCommitted) for event in events)


def test_a_batch_that_micro_batches_do_not_make_up_is_refused():
    with pytest.raises(ConfigError, match=r"rank_batch_size 7 is not a multiple of training\.micro_batch_size 3"):
        with_overrides(Settings(), {**PER_RANK, "rank_batch_size": 7})
