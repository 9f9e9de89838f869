"""Health: a state that diverged is marked when it is saved and passed over when one is restored."""

from __future__ import annotations

import json
import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.checkpoint.policy import EXPLODED, FEWEST_LOSSES, Signs, judge_health
from elastic.errors import NothingToRestore
from tests.harness.checkpoints import Bench, NoRecord, RecordCommitter, make_run, meta, same

STEADY = tuple(2.0 + each / 10 for each in range(10))
BAD = Signs(loss=math.nan, earlier_losses=STEADY)
GOOD = Signs(loss=2.0, earlier_losses=STEADY)


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("signs", "status", "told"),
    [
        (Signs(), None, "neither"),
        (Signs(loss=2.0), 0, "only 0 came before"),
        (Signs(loss=500.0, earlier_losses=STEADY[: FEWEST_LOSSES - 1]), 0, "only 7"),
        (GOOD, 0, "running median 2.45"),
        (Signs(loss=25.0, earlier_losses=STEADY), 1, "more than 10 times its running median 2.45"),
        (Signs(loss=24.0, earlier_losses=STEADY), 0, "24"),
        (Signs(loss=math.nan), 1, "the loss is nan"),
        (Signs(loss=-math.inf, earlier_losses=STEADY), 1, "the loss is -inf"),
        (Signs(loss=2.0, grad_norm=math.inf), 1, "the gradient norm is inf"),
        (Signs(grad_norm=3.0), 0, "finite"),
        (Signs(grad_norm=246.0, earlier_grad_norms=STEADY), 1, "gradient norm is 246, more than 100 times its running"),
        (Signs(grad_norm=244.0, earlier_grad_norms=STEADY), 0, "gradient norm is 244, its running median 2.45"),
        (Signs(grad_norm=246.0, earlier_grad_norms=STEADY[:7]), 0, "only 7"),
        (Signs(loss=2.0, earlier_losses=STEADY, grad_norm=1e9, earlier_grad_norms=STEADY), 1, "the gradient norm"),
        (Signs(loss=30.0, earlier_losses=(math.nan,) * 20), 0, "only 0"),
        (Signs(loss=100.0, earlier_losses=(-5.0,) * 20), 0, "running median -5"),
    ],
)
def test_the_rule(signs, status, told):
    verdict = judge_health(signs)
    assert verdict.status == status
    assert told in verdict.reason


@settings(deadline=None, max_examples=150)
@given(
    st.none() | st.floats(), st.lists(st.floats(allow_nan=False, allow_infinity=False)), st.none() | st.floats()
)  # fmt: skip
def test_the_rule_agrees_with_a_naive_one(loss, earlier, grad_norm):
    known = [each for each in (loss, grad_norm) if each is not None]
    expected = 0 if known else None
    if any(not math.isfinite(each) for each in known):
        expected = 1
    elif loss is not None and len(earlier) >= FEWEST_LOSSES and statistics.median(earlier) > 0:
        expected = int(loss > EXPLODED * statistics.median(earlier))
    assert judge_health(Signs(loss=loss, earlier_losses=earlier, grad_norm=grad_norm)).status == expected


@pytest.mark.parametrize("committer", [RecordCommitter, NoRecord])
def test_an_unhealthy_one_is_passed_over(tmp_path, committer):
    bench = Bench(tmp_path / "root", committer=committer())
    manager, good = bench.manager(), make_run().step(10)
    manager.save(good.tracked, meta(10, signs=GOOD))
    before = make_run().step(10)
    manager.save(good.step().tracked, meta(20, signs=BAD))
    assert json.loads((bench.directory(20) / "common.json").read_text())["ckpt_status"] == 1
    assert json.loads((bench.directory(10) / "common.json").read_text())["ckpt_status"] == 0
    assert "saved as unhealthy: the loss is nan" in " ".join(
        each.text for each in bench.events if each.kind == "notice"
    )
    other = make_run(seed=5)
    assert bench.manager(load_unhealthy=True).restore(other.tracked).iteration == 20
    assert bench.manager().restore(other.tracked).iteration == 10
    assert same(other, before)
    assert "marked unhealthy (ckpt_status 1)" in bench.reasons("checkpoint_rejected")
    # Whoever starts again before the next commit finds the same.
    assert bench.manager().restore(other.tracked).iteration == 10


def test_unknown_is_not_unhealthy(tmp_path):
    bench = Bench(tmp_path / "root")
    bench.manager().save(make_run().tracked, meta(10))
    assert json.loads((bench.directory(10) / "common.json").read_text())["ckpt_status"] is None
    assert bench.manager().restore(make_run().tracked).iteration == 10


def test_where_nothing_is_healthy_the_way_out_is_told(tmp_path):
    bench = Bench(tmp_path / "root")
    bench.manager().save(make_run().tracked, meta(10, signs=BAD))
    with pytest.raises(NothingToRestore, match=r"checkpoint\.load_unhealthy: true"):
        bench.manager().restore(make_run().tracked)
    for other in ({"load_path": str(bench.root)}, {"checkpoint_path": str(bench.directory(10))}):
        elsewhere = Bench(tmp_path / "other")
        with pytest.raises(NothingToRestore, match=r"checkpoint\.load_unhealthy: true"):
            elsewhere.manager(**other).restore(make_run().tracked)
        assert elsewhere.manager(load_unhealthy=True, **other).restore(make_run().tracked).iteration == 10


def test_an_unhealthy_one_is_not_adopted(tmp_path):
    bench = Bench(tmp_path / "root")
    bench.manager(generation=1).save(make_run().step(2).tracked, meta(2))
    manager, run = bench.manager(generation=1), make_run()
    manager.restore(run.tracked)
    refuse = bench.committer.answer
    bench.committer.answer = type(refuse)(granted=False, reason="etcd does not answer")
    assert not manager.save(run.step().tracked, meta(3, signs=BAD)).saved
    bench.committer.answer = refuse
    assert bench.manager(generation=2).restore(make_run().tracked).iteration == 2


def test_the_status_of_another_system_counts(tmp_path):
    from tests.unit.test_checkpoint_foreign import write_foreign

    directory = write_foreign(tmp_path / "theirs", make_run())
    path = directory / "common.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"ckpt_status": 1}))
    with pytest.raises(NothingToRestore, match="marked unhealthy"):
        Bench(tmp_path / "root").manager(load_path=str(tmp_path / "theirs"), no_load_optim=True).restore(
            make_run().tracked
        )


def test_the_scale_of_a_grad_scaler_is_written_and_comes_back(tmp_path):
    bench, scaler = Bench(tmp_path / "root"), torch.amp.GradScaler("cpu", init_scale=512.0)
    scaler.scale(torch.ones(()))
    scaler.update(256.0)
    bench.manager().save(make_run().tracked | {"scaler": scaler}, meta(10))
    assert json.loads((bench.directory(10) / "common.json").read_text())["loss_scale"] == 256.0
    other = torch.amp.GradScaler("cpu")
    bench.manager().restore(make_run().tracked | {"scaler": other})
    assert other.get_scale() == 256.0
