"""A worker goes from one generation to the next with all it has: a session in this process, both ends of its line real.

It is alone in each of its worlds, which needs no group, and its agent is the test.
"""

from __future__ import annotations

import os
import sys

import pytest
import torch

import elastic
from elastic.distributed.group import Alone
from elastic.link import Control, Place
from elastic.world import AGENT_SOCKET, GENERATION
from tests.harness.training import dataset, model, per_sample
from tests.unit.test_line import Agent, until


class Placing(Agent):
    """Gives a worker that stays its place in the generation after."""

    def stays(self, pid, stays):
        super().stays(pid, stays)
        self.server.begin_generation()
        self.server.place(pid, Place(environ={GENERATION: str(stays.generation + 1)}))


@pytest.fixture
def agent(monkeypatch):
    agent = Placing()
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", GENERATION: "1", AGENT_SOCKET: agent.server.path}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("elastic.session.meeting.join", lambda world, *, links: Alone())
    monkeypatch.setattr(sys, "argv", ["own_loop.py"])
    yield agent
    agent.server.stop()


def train(tmp_path, *, at_step, listen):
    """A user's loop. `at_step` is called within each step, `listen` may ask to be told of other worlds."""
    done = []
    options = {"steps": 8, "global_batch_size": 10, "micro_batch_size": 4, "save_path": str(tmp_path / "run")}
    with elastic.Session(**options) as run:
        listen(run)
        net = run.parallelize(model())
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
        run.track(model=net, optimizer=optimizer)
        for step in run.steps(dataset()):
            with step:
                at_step(run, step)
                for batch in step.micro_batches():
                    step.backward(per_sample(net, batch))
                optimizer.step()
            if step.done:
                done.append((run.world.generation, step.iteration))
    return done


def test_listeners_are_called_in_order_with_each_new_world_and_not_with_the_first(agent, tmp_path):
    called = []

    def listen(run):
        run.on_world_change(lambda world: called.append(("one", world.generation, run.world.generation)))
        run.on_world_change(lambda world: called.append(("two", world.generation, run.world.generation)))

    def at_step(run, step):
        if step.iteration in (3, 6):
            agent.server.ask_all(Control.REGROUP)
            until(run._link.regroup_wanted)

    done = train(tmp_path, at_step=at_step, listen=listen)
    assert called == [("one", 2, 2), ("two", 2, 2), ("one", 3, 3), ("two", 3, 3)]
    assert done == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 5), (2, 6), (2, 7), (3, 8)], "after the next step's own sum"
    assert {pid: stays.generation for pid, stays in agent.staying.items()} == {os.getpid(): 2}
