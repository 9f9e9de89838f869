"""`numerics: exact` under torchrun: whatever happens to the nodes, every bit is that of an undisturbed run."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from elastic.events import Record, Restored, StepCommitted, WorkerLost, WorkerStarted, WorkerStayed, read_records
from elastic.history import audit_run
from elastic.local.cluster import Cluster
from elastic.local.etcd import EtcdServer
from tests.harness.survival import cluster, durable, exact_account, restored_steps, run_alone

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

EXACT = {
    "ELASTIC__TRAINING__NUMERICS": "exact",
    "ELASTIC__JOB__TARGET": "jobs.pretrain_lm:job",
    "ELASTIC__DATA__PATH": str(Path(__file__).parents[2] / "LICENSE"),
    "ELASTIC__MODEL__LAYERS": "2",
    "ELASTIC__MODEL__WIDTH": "32",
    "ELASTIC__MODEL__HEADS": "2",
    "ELASTIC__MODEL__CONTEXT": "16",
    "ELASTIC__MODEL__DROPOUT": "0.1",
    "ELASTIC__OPTIMIZER__WARMUP_SAMPLES": "300",
}
"""6 slots, the last of two samples; dropout, clipping, AdamW, warm-up and cosine."""
COLD = {
    "ELASTIC__LAUNCH__REJOIN": "false",
    "ELASTIC__LAUNCH__READY_WORKERS": "false",
    "ELASTIC__CHECKPOINT__MEMORY_EVERY_STEPS": "0",
}
"""No rung of the ladder but the last one: every worker starts anew, every state comes from the disk."""
AUTOCAST = {"ELASTIC__JOB__TARGET": "tests.harness.exact_job:job"}
PLAN = (
    "a step is 6 micro-batches; by workers: 1: 6 each, 0% idle; 2: 3 each, 0% idle, 2 sums; 3: 2 each, 0% idle; "
    "4: 2 each, 25% idle"
)
"""What the least and the most nodes, and all between, make of a step; told by every agent at its start."""


def final_state(save_path: Path) -> dict[str, torch.Tensor]:
    """Every tensor of the newest iteration but the generators' states, which each rank sets anew for each slot."""
    newest = max(save_path.glob("iteration_*"))
    parts: dict[str, list[torch.Tensor]] = {}
    for file in sorted(newest.glob("*.safetensors")):
        kind = "opt" if "-opt-" in file.name else "model"
        for name, tensor in load_file(file).items():
            if not name.startswith("rng."):
                parts.setdefault(f"{kind} {name}", []).append(tensor)
    assert any(name.startswith("opt ") for name in parts)
    return {name: each[0] if len(each) == 1 else torch.cat(each) for name, each in parts.items()}


def assert_same_bits(found: Path, expected: Path) -> None:
    mine, theirs = final_state(found), final_state(expected)
    assert mine.keys() == theirs.keys()
    assert [name for name in mine if not torch.equal(mine[name], theirs[name])] == []


def assert_same_losses(run: Cluster, alone: Path) -> None:
    """Each step, as often as it was done, by whomever: the same loss to the last digit."""
    expected = {r.event.iteration: r.event.loss for r in steps(alone)}
    assert [r.event.iteration for r in steps(run.save_path) if r.event.loss != expected[r.event.iteration]] == []


def assert_rungs(records: list[Record], *, cold: bool) -> None:
    """Which rungs of the ladder were taken: all workers anew and from the disk, or some that stayed."""
    stayed = sum(isinstance(r.event, WorkerStayed) for r in records)
    tiers = Counter(r.event.tier for r in records if isinstance(r.event, Restored))
    paths = {r.event.path for r in records if isinstance(r.event, WorkerStarted)}
    if cold:
        assert (stayed, paths, tiers.keys() - {"none"}) == (0, {"reexec"}, {"disk"})
        # The others may have begun before anything was saved; a join saves first.
        assert tiers["disk"] >= 2 + 2, tiers
    else:
        assert stayed, tiers
        assert tiers.keys() & {"process", "memory", "peer"}, tiers


def steps(save_path: Path):
    return [r for r in read_records(save_path / "events") if isinstance(r.event, StepCommitted)]


@pytest.mark.parametrize(
    ("seed", "strategy", "more"),
    [
        (0, "replicate", {}),
        (1, "replicate", AUTOCAST),
        (2, "fsdp2", {}),
        (3, "fsdp2", AUTOCAST),
        (4, "replicate", COLD),
    ],
    ids=["replicate", "replicate, autocast", "fsdp2", "fsdp2, autocast", "cold restarts alone"],
)
def test_four_three_one_two_with_kills_at_random_moments(
    tmp_path: Path, etcd: EtcdServer, seed: int, strategy: str, more: dict[str, str]
) -> None:
    """Whatever the strategy: the bits are those of one replica that nobody disturbed."""
    draw = random.Random(seed)
    run_alone(tmp_path / "alone", steps=800, **{**EXACT, **more})
    (tmp_path / "run").mkdir()
    lying = {**EXACT, "ELASTIC__TRAINING__STRATEGY": strategy, **more}
    with cluster(tmp_path / "run", etcd.endpoint, steps=800, **lying) as run:

        def after_some_steps(size: int, *, since: int) -> None:
            """Wait until this world has done some steps, and then some more of a moment's choosing."""
            first = run.wait_step(1, world_size=size, since=since).event.iteration
            run.wait_step(first + draw.randrange(3, 60), world_size=size, since=since)

        for name in "abcd":
            run.start(name)
        after_some_steps(4, since=0)
        for sizes, victims in ((3, draw.sample("abcd", 1)), (1, None)):
            left = [name for name in "abcd" if run.nodes[name].process.poll() is None]
            at = run.now()
            for victim in victims or draw.sample(left, 2):
                run.nodes[victim].kill()
            after_some_steps(sizes, since=at)
        at = run.now()
        run.start("e")
        after_some_steps(2, since=at)
        (worker,) = run.nodes["e"].workers()
        os.kill(worker, signal.SIGKILL)
        run.wait(
            lambda r: isinstance(r.event, WorkerLost) and r.event.pid == worker, what="the kill", limit_s=30, since=at
        )
        last = [name for name, node in run.nodes.items() if node.process.poll() is None]
        assert [run.wait_exit(name, limit_s=180) for name in last] == [0, 0]
        assert exact_account(run).steps == 800
        assert {r.event.world_size for r in steps(run.save_path)} == {1, 2, 3, 4}
        assert PLAN in run.nodes["a"].log.read_text()
        assert_rungs(read_records(run.save_path / "events"), cold=more is COLD)
        assert_same_losses(run, tmp_path / "alone" / "checkpoint")
        assert_same_bits(run.save_path, tmp_path / "alone" / "checkpoint")


def test_twenty_four_kills_in_a_row(tmp_path: Path, etcd: EtcdServer) -> None:
    """Workers of any node, at moments of chance: the others keep their processes, every bit is as if nothing was."""
    draw, kills, names = random.Random(7), 24, "abc"
    run_alone(tmp_path / "alone", steps=1500, **EXACT)
    (tmp_path / "run").mkdir()
    with cluster(tmp_path / "run", etcd.endpoint, steps=1500, **EXACT) as run:
        for name in names:
            run.start(name)
        run.wait_step(5, world_size=3)
        for _ in range(kills):
            at = run.now()
            generation = max(r.generation for r in run.follower.records)
            (victim,) = run.nodes[draw.choice(names)].workers()
            os.kill(victim, signal.SIGKILL)
            back = run.wait_step(1, world_size=3, since=at, after=generation).event.iteration
            run.wait_step(back + draw.randrange(1, 20), world_size=3, since=at, after=generation)
        assert [run.wait_exit(name, limit_s=180) for name in names] == [0, 0, 0]
        records = read_records(run.save_path / "events")
        lost = [r for r in records if isinstance(r.event, WorkerLost) and "SIGKILL" in r.event.reason]
        assert len(lost) == kills
        assert sum(isinstance(r.event, WorkerStayed) for r in records) >= 2 * kills
        assert exact_account(run).steps == 1500
        assert_same_losses(run, tmp_path / "alone" / "checkpoint")
        assert_same_bits(run.save_path, tmp_path / "alone" / "checkpoint")


def test_a_crash_at_the_third_micro_batch_redoes_the_step(tmp_path: Path, etcd: EtcdServer) -> None:
    """Accumulation is never cut. Eight micro-batches on two nodes: in each life, node b's worker dies at its 11th."""
    more = {
        **EXACT,
        "ELASTIC__TRAINING__GLOBAL_BATCH_SIZE": "32",
        "ELASTIC__CHECKPOINT__SAVE_INTERLEAVED_STEPS": "1",
    }
    run_alone(tmp_path / "alone", steps=6, **more)
    (tmp_path / "run").mkdir()
    with cluster(tmp_path / "run", etcd.endpoint, steps=6, options=(), nnodes="2", **more) as run:
        run.start("a")
        run.start("b", ELASTIC_FAILPOINT="step.micro_batch=kill@11")
        assert [run.wait_exit(name, limit_s=120) for name in ("a", "b")] == [0, 0]
        records = read_records(run.save_path / "events")
        killed = [r.event for r in records if isinstance(r.event, WorkerLost) and "SIGKILL" in r.event.reason]
        assert len(killed) == 2, "steps 1 and 2 in the first life, 3 and 4 in the second, 5 and 6 in the third"
        assert sorted(restored_steps(records).values()) == [0, 2, 4]
        assert exact_account(run).steps == 6
        assert_same_losses(run, tmp_path / "alone" / "checkpoint")
        assert_same_bits(run.save_path, tmp_path / "alone" / "checkpoint")


def test_a_death_between_backward_and_the_optimizers_step(tmp_path: Path, etcd: EtcdServer) -> None:
    """All gradients are there; node b's worker dies, in each of its lives, before its fourth step changes anything.

    The others do that step and count it. Who takes the dead one's place stands where they do: none is a batch behind.
    """
    run_alone(tmp_path / "alone", steps=14, **EXACT)
    (tmp_path / "run").mkdir()
    with cluster(tmp_path / "run", etcd.endpoint, steps=14, nnodes="3", **EXACT) as run:
        run.start("b", ELASTIC_FAILPOINT="step.reduced=kill@4")
        for name in "ac":
            run.start(name)
        assert [run.wait_exit(name, limit_s=120) for name in "abc"] == [0, 0, 0]
        records = read_records(run.save_path / "events")
        killed = [r for r in records if isinstance(r.event, WorkerLost) and "SIGKILL" in r.event.reason]
        assert [r.node for r in killed] == ["b"] * 3, "in steps 4, 8 and 12"
        assert sum(isinstance(r.event, WorkerStayed) for r in records) >= 2 * len(killed)
        found = audit_run(run.save_path)
        assert (found.exact, found.steps, found.recomputed_steps) == (True, 14, 0)
        assert found.proved_by_digest_steps == len(killed), "who died in a step has not told of it"
        assert_same_losses(run, tmp_path / "alone" / "checkpoint")
        assert_same_bits(run.save_path, tmp_path / "alone" / "checkpoint")


def test_a_node_that_computes_other_bits_is_sent_away(tmp_path: Path, etcd: EtcdServer) -> None:
    """The newcomer's name sorts before the others', and its rank may be any: those who saved before are the run."""
    with cluster(tmp_path, etcd.endpoint, steps=3000, **EXACT) as run:
        for name in ("b", "c"):
            run.start(name)
        run.wait_step(1, world_size=2)
        run.wait(durable, what="a save", limit_s=60)
        before = steps(run.save_path)[-1].generation
        run.start("a", ATEN_CPU_CAPABILITY="default")
        assert run.wait_exit("a", limit_s=90) == 64
        log = run.nodes["a"].log.read_text()
        assert "instructions is DEFAULT" in log
        assert "training.numerics" in log
        at = run.now()
        run.wait_step(1, world_size=2, since=at)
        assert [run.wait_exit(name, limit_s=120) for name in ("b", "c")] == [0, 0]
        assert exact_account(run).steps == 3000
        assert steps(run.save_path)[-1].generation == before, "nobody made room for it"
