"""Workers that would compute other bits are found, named and sent away; who was there before stays."""

import dataclasses
import sys

import pytest
import torch
from torch import nn

import elastic
from elastic.config.model import TrainingSettings
from elastic.distributed.group import Alone
from elastic.distributed.likeness import check_alike, measure
from elastic.distributed.replicate import Replica
from elastic.errors import NumericsDiffer, PeerLost, UsageError
from elastic.history import newest_manifest
from elastic.launch.exits import WorkerExit, judge
from elastic.link import Failure
from elastic.plan.likeness import Likeness, Refusal, recorded_in, refuse
from elastic.plan.tree import Spread
from elastic.session.ending import describe
from tests.harness.ranks import run_ranks
from tests.harness.training import dataset, model, per_sample

OURS = Likeness(
    torch="2.13.0", build="b", instructions="AVX512 (x)", device="cpu", threads=1, precision="highest",
    global_batch_size=8, micro_batch_size=2, seed=0,
)  # fmt: skip
OTHER = dataclasses.replace(OURS, threads=2, instructions="AVX2 (x)")


@pytest.mark.parametrize(
    ("every", "recorded", "refused"),
    [
        ([OURS, OURS, OURS], None, []),
        ([OURS, OTHER, OURS], None, [1]),
        ([OTHER, OURS, OURS], None, [0]),
        ([OTHER, OURS], None, [1]),
        ([OTHER, OURS], OURS, [0]),
        ([OTHER, OTHER, OURS], OURS, [0, 1]),
        ([OTHER, OTHER], OURS, []),
    ],
    ids=["all alike", "the odd one", "rank 0 is the odd one", "a tie", "a newcomer took rank 0", "outnumbered",
         "all have moved"],
)  # fmt: skip
def test_who_is_refused(every, recorded, refused):
    assert [refusal.rank for refusal in refuse(every, recorded=recorded)] == refused


def test_the_reason_says_what_is_different():
    assert refuse([OURS, OTHER], recorded=None) == (
        Refusal(
            rank=1,
            reason="instructions is AVX2 (x), that of worker 0 AVX512 (x); threads is 2, that of worker 0 1",
        ),
    )
    assert "that of the run 1" in refuse([OTHER, OURS], recorded=OURS)[0].reason


def test_the_refused_one_and_the_others_end_differently():
    def work(group):
        try:
            check_alike(OTHER if group.rank == 1 else OURS, recorded=None, group=group)
        except (NumericsDiffer, PeerLost) as error:
            return error
        return None

    left, refused, right = run_ranks(3, work)
    assert isinstance(left, PeerLost)
    assert isinstance(right, PeerLost)
    assert isinstance(refused, NumericsDiffer)
    assert "threads is 2" in str(refused)
    assert "training.numerics" in str(refused)


def test_its_node_alone_is_to_blame():
    failure = describe(NumericsDiffer("other bits"), step=0)
    assert (failure.exit_code, failure.node_local) == (64, True)
    verdict = judge(
        [WorkerExit(rank=1, pid=7, exit_code=64, order=0, told=failure)], step=0, committed_steps=0, killed=frozenset()
    )
    assert verdict.report.node_local
    assert not describe(UsageError("a mistake of all"), step=0).node_local
    assert not Failure(exit_code=64, step=0, signature="", text="").node_local


def test_measured_twice_it_is_the_same_and_survives_a_checkpoint(tmp_path):
    one = measure(TrainingSettings(), device="cpu", environ={})
    assert one == measure(TrainingSettings(), device="cpu", environ={})
    assert recorded_in({"likeness": one.to_plain()}) == one
    assert recorded_in({}) is None
    assert recorded_in({"likeness": {"torch": "1"}}) is None
    check_alike(one, recorded=OURS, group=Alone())


def test_what_is_measured_tells(tmp_path):
    base = measure(TrainingSettings(), device="cpu", environ={})
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("vendor_id : Other\nflags : fpu avx2\n\nvendor_id : Other\n")
    assert measure(TrainingSettings(), device="cpu", environ={}, cpuinfo=cpuinfo) != base
    assert measure(TrainingSettings(), device="cpu", environ={}, cpuinfo=tmp_path / "none") != base
    assert measure(TrainingSettings(), device="cpu", environ={"MKL_CBWR": "AVX2"}) != base
    assert measure(TrainingSettings(micro_batch_size=2), device="cpu", environ={}) != base
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert measure(TrainingSettings(), device="cpu", environ={}).threads == threads + 1
    finally:
        torch.set_num_threads(threads)


def test_a_run_remembers_how_it_was_computed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["own_loop.py"])
    options = {"global_batch_size": 10, "micro_batch_size": 4, "save_path": str(tmp_path), "numerics": "exact"}
    for steps in (2, 3):
        with elastic.Session(environ={}, steps=steps, **options) as run:
            net = run.parallelize(model())
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            run.track(model=net, optimizer=optimizer)
            for step in run.steps(dataset()):
                with step:
                    for batch in step.micro_batches():
                        step.backward(per_sample(net, batch))
                    optimizer.step()
        saved = newest_manifest(tmp_path).settings
        assert recorded_in(saved) == measure(run.settings.training, device="cpu", environ={})


class TestBuffers:
    """What a forward pass remembers depends on who ran which micro-batch."""

    def step(self, net, *, exact=True):
        replica = Replica(net, Alone(), exact=exact)
        replica.begin_step(Spread((range(1),)))
        replica.begin_round(0, last=True)
        net(torch.randn(4, 3)).sum().backward()
        replica.send()
        replica.reduce()

    def test_batch_norm_is_refused(self):
        with pytest.raises(UsageError, match=r"buffer 1\.num_batches_tracked of BatchNorm1d.*eval\(\)") as refused:
            self.step(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
        assert "track_running_stats=False" in str(refused.value)

    def test_so_is_spectral_norm(self):
        with pytest.raises(UsageError, match="_u"):
            self.step(nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)))

    def test_not_what_stays_the_same(self):
        self.step(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval())
        self.step(nn.BatchNorm1d(3, track_running_stats=False))
        self.step(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)))
        self.step(nn.BatchNorm1d(3), exact=False)

    def test_not_a_cache(self):
        class Cached(nn.Linear):
            def forward(self, x):
                self.register_buffer("cache", torch.ones(3), persistent=False)
                return super().forward(x) * self.cache

        self.step(Cached(3, 3))
