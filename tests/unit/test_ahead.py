"""A node that comes to others at work builds before it asks to be let in: when it asks, and what its job may know."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

import elastic
from elastic.distributed.group import Alone
from elastic.errors import ExitCode, PlaceUnknown
from elastic.events import Cause
from elastic.launch.ahead import AT_REST_S, PLANNED_S, Situation, Step, judge
from elastic.launch.starting import Starter
from elastic.launch.words import Words
from elastic.link import Failure, Place, Stays
from elastic.rendezvous.model import Phase
from elastic.rendezvous.model import World as Agreed
from elastic.session.ahead import WorldToCome
from elastic.world import AGENT_SOCKET, GENERATION, PLACE_TO_COME, World
from tests.harness.training import dataset, model, per_sample
from tests.unit.test_generations import Placing
from tests.unit.test_staying import child


def world(phase=Phase.FORMED, *, planned=False):
    return Agreed(
        generation=3, phase=phase, seats=(), store_address="", store_port=0, cause=Cause.NODE_LOST, reason="",
        planned=planned,
    )  # fmt: skip


def failure(code, text):
    return Failure(exit_code=code, step=0, signature="", text=text)


AT_FIRST = Situation(workers=2, built=1, failed=None, world=world(), rests_s=0.0, spent_s=9.0, limit_s=10.0)


@pytest.mark.parametrize(
    ("change", "step"),
    [
        ({}, Step.WAIT),
        ({"built": 2}, Step.ASK),
        ({"spent_s": 10.0}, Step.ASK),
        ({"failed": failure(1, "Traceback …\nKeyError: 'RANK'"), "built": 2}, Step.AFRESH),
        ({"failed": failure(111, "the job asked for its world's rank"), "built": 2}, Step.AFRESH),
        ({"failed": failure(64, "there is no module 'x'")}, Step.GO),
        ({"failed": failure(0, "a worker ended with exit code 0")}, Step.GO),
        ({"world": world(Phase.OPEN), "rests_s": AT_REST_S / 2}, Step.WAIT),
        ({"world": world(Phase.OPEN), "rests_s": AT_REST_S}, Step.ASK),
        ({"world": world(Phase.OPEN, planned=True), "rests_s": AT_REST_S}, Step.WAIT),
        ({"world": world(Phase.OPEN, planned=True), "rests_s": PLANNED_S}, Step.ASK),
        ({"world": world(Phase.CLOSED)}, Step.ASK),
        ({"world": None}, Step.ASK),
    ],
)
def test_when_a_node_asks_to_be_let_in(change, step):
    verdict = judge(dataclasses.replace(AT_FIRST, **change))
    assert verdict.step is step
    assert verdict.reason


def test_what_a_job_may_know_before_there_is_a_place():
    given = WorldToCome(World(node="c", local_rank=1, placed=False, distributed=True))
    assert (given.node, given.local_rank, given.device) == ("c", 1, "cpu")
    given.check()
    for name in ("rank", "size", "generation"):
        with pytest.raises(PlaceUnknown, match=f"its world's {name} while it was built"):
            getattr(given, name)
    with pytest.raises(PlaceUnknown):
        given.check()
    assert copy.deepcopy(given).node == "c"
    given.come(World(rank=2, size=3, generation=7))
    assert (given.rank, given.size, given.generation) == (2, 3, 7), "one that the job has kept goes on being true"


def test_the_environment_of_a_worker_without_a_place():
    environ = {PLACE_TO_COME: "1", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", AGENT_SOCKET: "/s", GENERATION: "8"}
    found = World.from_environ(environ)
    assert (found.placed, found.distributed, found.local_rank, found.local_size) == (False, True, 1, 2)
    assert (found.rank, found.generation, found.agent_socket) == (-1, 0, "/s")
    placed = World.from_environ({**environ, PLACE_TO_COME: "", "RANK": "4", "WORLD_SIZE": "6"})
    assert (placed.placed, placed.rank, placed.size, placed.generation) == (True, 4, 6, 8)


def test_who_is_late_to_build_is_not_taken_for_one_that_stays():
    words = Words(wake=lambda: None)
    built = Stays(generation=0, lost=False, step=0, text="the job is built")
    words.stays(11, built)
    assert words.staying == {11: built}
    words.forget(generation=4)
    words.stays(12, built)
    assert words.staying == {}
    words.stays(11, dataclasses.replace(built, generation=4))
    assert list(words.staying) == [11]


def test_a_worker_started_ahead_is_given_its_first_place():
    process, places, started = child(), {}, []

    def start(*args):
        started.append(args)
        return type("Handler", (), {"proc": process})

    def place(pid, given):
        places[pid] = given
        return True

    starter = Starter(start, place=place, extra=lambda: {GENERATION: "4"})
    try:
        assert starter.ahead("python", ("-u", "worker.py"), local_rank=0, slots=1) is process
        ((_, _, env, out, _, _, _),) = started
        assert (env[PLACE_TO_COME], env["LOCAL_RANK"], out, "RANK" in env) == ("1", "0", "", False)
        assert starter("python", (), {"RANK": "2"}, "out", "", 0).proc is process
        given = Place(environ={"RANK": "2", GENERATION: "4", PLACE_TO_COME: ""}, stdout="out")
        assert places == {process.pid: given}
        assert starter.stayed == set(), "it is new to the run"
    finally:
        process.kill()
        process.wait()


class Seating(Placing):
    """Gives a worker that has built its job its first place."""

    def stays(self, pid, stays):
        self.stayed = stays
        self.server.place(pid, Place(environ={GENERATION: "5", PLACE_TO_COME: ""}))


@pytest.mark.parametrize("strategy", ["replicate", "fsdp2"])
def test_a_job_is_built_and_then_comes_to_its_place(tmp_path, monkeypatch, strategy):
    done, agent = build_and_train(tmp_path, monkeypatch, torch.optim.AdamW, strategy=strategy)
    assert done == [(5, 0, number) for number in range(1, 9)]
    assert (agent.stayed.generation, agent.stayed.lost) == (0, False)


def test_what_dealing_would_lose_begins_no_run(tmp_path, monkeypatch):
    """Adagrad makes its state with itself. A new worker makes it once parameters are dealt out."""

    def ends(code):
        raise SystemExit(code)

    monkeypatch.setattr("elastic.session.ending.exit_now", ends)
    with pytest.raises(SystemExit) as ended:
        build_and_train(tmp_path, monkeypatch, torch.optim.Adagrad, strategy="fsdp2")
    assert ended.value.code == ExitCode.PEER_LOST
    done, _ = build_and_train(tmp_path, monkeypatch, torch.optim.Adagrad, strategy="replicate")
    assert len(done) == 8


def build_and_train(tmp_path, monkeypatch, kind, *, strategy):
    """Steps done, as (generation, rank that the job was told, step); and the agent."""
    agent = Seating()
    monkeypatch.setattr("elastic.session.meeting.join", lambda world, *, links: Alone())
    monkeypatch.setattr("sys.argv", ["own_loop.py"])
    environ = {PLACE_TO_COME: "1", GENERATION: "4", "RANK": "0", "WORLD_SIZE": "1", AGENT_SOCKET: agent.server.path}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    options = {"steps": 8, "global_batch_size": 10, "micro_batch_size": 4, "save_path": str(tmp_path / "run")}
    options["strategy"], done = strategy, []
    try:
        with elastic.Session(**options) as run:
            given = run.world
            assert given.local_rank == 0
            net = run.parallelize(model())
            optimizer = kind(net.parameters(), lr=0.02)
            run.track(model=net, optimizer=optimizer)
            for step in run.steps(dataset()):
                with step:
                    for batch in step.micro_batches():
                        step.backward(per_sample(net, batch))
                    optimizer.step()
                done.append((run.world.generation, given.rank, step.iteration))
    finally:
        agent.server.stop()
    return done, agent
