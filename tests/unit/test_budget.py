"""What failures amount to: by reason, by step, by node."""

import dataclasses

import pytest

from elastic.events import Cause
from elastic.rendezvous.budget import Reported, judge, left
from elastic.rendezvous.model import Barred, FailureReport


def said(agent, cause=Cause.WORKER_EXIT, *, step=5, signature="E", **more):
    report = FailureReport(cause=cause, rank=0, step=step, signature=signature, **{"committed_steps": 5} | more)
    return Reported(agent=agent, node=agent, report=report)


def run(generations, **limits):
    """Judgements of generation after generation, each a list of reports."""
    history, judgements = (), []
    for number, reports in enumerate(generations, start=1):
        judgement = judge(history, generation=number, reports=reports, **{"no_progress_limit": 3} | limits)
        history = judgement.history
        judgements.append(judgement)
    return judgements


def codes(judgements):
    return [judgement.exit_code for judgement in judgements]


@pytest.mark.parametrize("cause", [Cause.PEER_LOST, Cause.GROUP_FAILED])
def test_what_nobody_did_spends_its_own_bucket_where_all_are_there(cause):
    reports = [[said("a", cause), said("b", Cause.PEER_LOST)]] * 10
    assert codes(run(reports, whole=True)) == [None] * 9 + [77]
    assert codes(run(reports, whole=False)) == [None] * 10


def test_a_failure_counts_once_and_for_the_generation_that_it_ended():
    late = said("a", generation=1)
    first, again = run([[], [late]])[-1], run([[said("a")], [late]])[-1]
    assert [failure.generation for failure in first.history] == [1]
    assert [failure.generation for failure in again.history] == [1]
    both = run([[said("a", step=5)], [said("b", step=6, generation=1), late]])[-1]
    assert [(failure.generation, failure.agent) for failure in both.history] == [(1, "a"), (1, "b")], "no progress"


def test_what_is_left_of_each_budget_and_the_step_to_get_past():
    limits = {"no_progress_limit": 3, "bucket_limit": 10}
    assert left((), **limits) == ((("worker", 3, 3), ("hang", 3, 3), ("group", 10, 10), ("peer", 10, 10)), 0)
    reports = [[said("a", step=5)], [said("a", step=5), said("b", step=4)], [said("a", Cause.PEER_LOST, step=5)]]
    history = run(reports, whole=True)[-1].history
    assert left(history, **limits) == ((("worker", 1, 3), ("hang", 3, 3), ("group", 10, 10), ("peer", 9, 10)), 5)
    history = run([[said("a", Cause.WORKER_HUNG, signature="hang")]])[-1].history
    assert left(history, **limits)[0][:2] == (("worker", 3, 3), ("hang", 2, 3))


def test_buckets_do_not_mix():
    each = [[said("a", Cause.PEER_LOST)], [said("a", Cause.GROUP_FAILED)], [said("a"), said("b")]]
    assert codes(run(each * 2, whole=True, bucket_limit=3, no_progress_limit=3)) == [None] * 6


def test_a_hang_is_no_failure_and_a_failure_no_hang():
    hung = said("a", Cause.WORKER_HUNG, signature="hang")
    assert codes(run([[said("a")], [said("b")], [hung], [hung]])) == [None] * 4
    others = [[said("a", Cause.WORKER_HUNG, signature="hang")], [said("b", Cause.WORKER_HUNG, signature="hang")]]
    assert codes(run([*others, others[0]])) == [None, None, 77], "of different nodes: nobody is left out for it"


def test_own_failures_of_any_kind_count_for_the_step():
    kinds = [
        [said("a", signature="E"), said("b")],
        [said("b", Cause.WORKER_SIGNAL, signature="SIGKILL")],
        [said("a", signature="exit 3")],
    ]
    judgements = run(kinds)
    assert codes(judgements) == [None, None, 77]
    assert "step 5 was not passed in generations 1, 2, 3" in judgements[-1].reason
    assert [failure.bucket for failure in judgements[-1].history] == ["exception", "exception", "signal", "exit"]


def test_getting_past_the_step_refills():
    assert codes(run([[said("a", step=step), said("b", step=step)] for step in range(20)])) == [None] * 20


def test_one_agent_alone_is_named_and_two_are_the_job():
    alone = run([[said("a")]] * 3)[-1]
    assert alone.exit_code == 77
    assert alone.alone.agent == "a"
    assert alone.without().history == ()
    assert run([[said("a")], [said("b")], [said("a")]])[-1].alone is None


def test_a_failure_that_follows_to_another_node_is_the_jobs():
    barred = Barred(agent="a", node="a", signature="E", exit_code=70, reason="", step=5)
    (moved,) = run([[said("b")]], barred=[barred])
    assert (moved.exit_code, moved.alone) == (70, None)
    assert codes(run([[said("b", signature="other")]], barred=[barred])) == [None]
    assert codes(run([[said("b", step=6)]], barred=[barred])) == [None], "the run had got past that step"


def test_a_failure_that_comes_again_with_a_new_agent_of_its_node_is_that_nodes():
    barred = Barred(agent="a", node="host", signature="E", exit_code=70, reason="", step=5)
    again = dataclasses.replace(said("a2"), node="host")
    (judgement,) = run([[again]], barred=[barred])
    assert (judgement.exit_code, judgement.alone.agent) == (70, "a2")
    (judgement,) = run([[again, said("b", signature="F")]], barred=[barred])
    assert (judgement.exit_code, judgement.alone) == (None, None), "others fail too: it is weighed as any other"
    assert codes(run([[again]], barred=[barred], needed=True)) == [None]


def test_a_bad_disk_that_is_needed_is_tried_again():
    reports = [[said("a", exit_code=70, node_local=True)]] * 3
    assert codes(run(reports)) == [70, 70, 70]
    assert codes(run(reports, needed=True)) == [None, None, 77]


@pytest.mark.parametrize(("local", "alone"), [(False, False), (True, True)])
def test_usage_ends_the_job_unless_the_node_is_to_blame(local, alone):
    (judgement,) = run([[said("a", exit_code=64, node_local=local)]])
    assert judgement.exit_code == 64
    assert (judgement.alone is not None) is alone
