"""A worker that stays: what a lost step leaves behind, when staying is possible, and how the next place is taken."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
import torch
from torch import nn

from elastic.distributed.group import Alone
from elastic.distributed.replicate import Replica
from elastic.errors import PeerLost
from elastic.launch.exits import Ending, judge, staying_as
from elastic.launch.starting import Starter
from elastic.link import NoLink, Place, Stays
from elastic.session.staying import Staying
from tests.harness.training import course, model, per_sample

STAYS = Stays(generation=3, lost=True, step=7, text="a peer went away")


class Agent(NoLink):
    """The line to an agent that gives a place at the second time of asking."""

    present = True

    def __init__(self, place: Place | None = None):
        super().__init__()
        self.place, self.told = place, []

    def send_stays(self, stays):
        self.told.append(stays)

    def next_place(self, *, limit_s):
        place, self.place = self.place, None
        return place


def staying(link=None, *, allowed=True):
    return Staying(link=link or Agent(), allowed=allowed)


class Normed(nn.Module):
    """Buffers that change in each forward pass."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6, dtype=torch.float64)
        self.rest = model()

    def forward(self, x):
        return self.rest(self.norm(x))


class Breaking(Alone):
    """A group whose sum breaks, once."""

    def __init__(self):
        self.broke = 0

    def sum_(self, tensor):
        if not self.broke:
            self.broke += 1
            raise PeerLost("a peer went away while summing")


def one_step(run, lies, group, *, stays, over=lambda: False):
    step = run.next_step(group, (lies,), lambda: False, stays=stays, over=over)
    with step:
        for batch in step.micro_batches():
            step.backward(per_sample(lies.model, batch))
    return step


def test_a_lost_step_leaves_everything_as_it_was_and_is_done_again():
    torch.manual_seed(0)
    net, group = Normed(), Breaking()
    lies, run = Replica(net, group), course(global_batch_size=12)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    states = (random.getstate(), torch.get_rng_state())
    lost = one_step(run, lies, group, stays=lambda: True)
    assert group.broke == 1
    assert "while step 1 was computed" in lost.lost
    assert not lost.done
    assert not lost.crosses(1), "nothing is to follow on a step that was not done"
    assert all(torch.equal(net.state_dict()[name], value) for name, value in before.items())
    assert random.getstate() == states[0]
    assert torch.equal(torch.get_rng_state(), states[1])
    again = one_step(run, lies, group, stays=lambda: True)
    assert again.done
    assert (again.iteration, again.start) == (lost.iteration, lost.start)
    assert not torch.equal(net.norm.running_mean, before["norm.running_mean"])


def test_where_a_worker_cannot_stay_the_loss_is_raised():
    group = Breaking()
    with pytest.raises(PeerLost, match="while summing"):
        one_step(course(), Replica(model(), group), group, stays=lambda: False)


def test_who_computes_in_vain_is_told_at_the_next_micro_batch():
    group, asked = Alone(), []

    def over():
        asked.append(1)
        return len(asked) == 2

    lost = one_step(course(), Replica(model(), group), group, stays=lambda: True, over=over)
    assert len(asked) == 2
    assert "the agent says that this generation is over" in lost.lost


def test_when_it_is_possible():
    assert staying().possible
    assert not staying(allowed=False).general
    assert not staying(link=NoLink()).possible, "nobody gives a next place"
    spoilt = staying()
    spoilt.forbid()
    assert spoilt.general
    assert not spoilt.possible


def test_not_while_the_optimizer_is_at_work():
    one, net = staying(), nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    one.watch(optimizer)
    net(torch.ones(1, 2)).sum().backward()
    assert one.possible
    optimizer.step()
    assert not one.possible
    assert one.general, "the same on all ranks, whatever this one is at"
    one.committed()
    assert one.possible


def test_the_next_place_is_taken(tmp_path):
    code = """
import os, sys
from elastic.link import Place
from elastic.session.staying import Staying
from tests.unit.test_staying import Agent
out, err = sys.argv[1:]
link = Agent(Place(environ={"RANK": "2", "WORLD_SIZE": "3", "ELASTIC_GENERATION": "9"}, stdout=out, stderr=err))
staying = Staying(link=link)
world = staying.wait(lost=True, generation=8, step=5, text="why", environ=os.environ)
print(world.rank, world.size, world.generation, os.environ["RANK"], link.told[0].step, flush=True)
print("and errors", file=sys.stderr, flush=True)
"""
    out, err = tmp_path / "out", tmp_path / "err"
    out.write_text("before\n")
    subprocess.run([sys.executable, "-c", code, out, err], check=True, capture_output=True)
    assert out.read_text() == "before\n2 3 9 2 5\n"
    assert err.read_text() == "and errors\n"


def test_waiting_ends_where_the_agent_wants_what_is_kept_to_be_saved():
    class Leaving(Agent):
        keep_wanted = False

        def next_place(self, *, limit_s):
            self.keep_wanted = True

    assert staying(Leaving()).wait(lost=False, generation=1, step=1, text="", environ={}) is None


def test_a_long_wait_shows_that_it_is_one():
    class Late(Agent):
        asked = 0

        def next_place(self, *, limit_s):
            self.asked += 1
            return self.place if self.asked == 4 else None

    shown = []
    place = Place(environ={"RANK": "0", "WORLD_SIZE": "1"})
    told = {"lost": False, "generation": 1, "step": 1, "text": "", "environ": {}}
    assert staying(Late(place)).wait(**told, idle=lambda: shown.append(1)).size == 1
    assert len(shown) == 3, "or the hang watch would count the wait when it is over"


def child():
    return subprocess.Popen(["sleep", "60"], start_new_session=True)


def test_an_agent_hands_out_places_and_starts_who_is_missing():
    kept, gone, places, started = child(), child(), {}, []

    def place(pid, given):
        places[pid] = given
        return pid == kept.pid

    def start(*args):
        started.append(args)
        return "new"

    starter = Starter(start, place=place, extra=lambda: {"ELASTIC_GENERATION": "4"})
    starter.kept = {0: kept, 1: gone}
    try:
        handlers = [starter("worker.py", (), {"RANK": str(rank)}, f"out{rank}", "", rank) for rank in range(3)]
        assert handlers[0].proc is kept
        assert places[kept.pid] == Place(environ={"RANK": "0", "ELASTIC_GENERATION": "4"}, stdout="out0")
        assert handlers[1:] == ["new", "new"]
        assert gone.poll() == -9, "one that hung up must not go on beside its replacement"
        assert [args[-2] for args in started] == [1, 2]
        assert (starter.stayed, starter.kept) == ({0}, {})
        starter.kept = {0: kept}
    finally:
        starter.drop()
    assert kept.poll() == -9
    assert starter.kept == {}


def test_what_staying_means_for_the_verdict():
    lost = staying_as(STAYS, rank=1, pid=11, order=0)
    found = judge([lost], step=7, committed_steps=7, killed=frozenset())
    assert found.ending is Ending.FAILED
    assert found.report is not None
    assert (found.report.cause, found.report.step) == ("peer_lost", 7)
    planned = staying_as(Stays(generation=3, lost=False, step=7, text=""), rank=1, pid=11, order=0)
    assert judge([planned], step=7, committed_steps=7, killed=frozenset()).ending is Ending.REGROUP
