"""`make bench-overhead`: what the whole system costs beside a bare DDP loop on the same model, in turns.

Ours: torchrun with the etcd rendezvous, our agent, exporter, events, data account, loader, and a copy of the state in
memory each few steps. The peer: a bare DDP loop under `torchrun --standalone`. One node of two workers each. Seconds
and CPU seconds (of torchrun and everything below it) are taken between two steps of each run, the first one behind two
copies in memory: these alone touch their pages for the first time, once in a job. Then both step in turns in the same
processes, which tells more finely what a worker does more, and what the agent takes beside it. `--quick` is for the
test suite: few steps, no judgement of times.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from elastic.events import RunFinished, StepCommitted, read_records
from elastic.local.etcd import EtcdServer
from elastic.local.node import ROOT
from tests.bench.table import Row, show

LIMIT_S = 300.0
TORCHRUN = Path(sys.executable).with_name("torchrun")
SIZES = {
    "full": {},
    "tiny": {"ELASTIC__MODEL__LAYERS": "1", "ELASTIC__MODEL__WIDTH": "32", "ELASTIC__MODEL__HEADS": "2"},
}


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one step, in seconds."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What both sides run."""

    size: str
    warm_steps: int
    steps: int
    numerics: str
    memory_every: int

    def environ(self, place: Path) -> dict[str, str]:
        """The settings of both sides."""
        return {
            **os.environ,
            **SIZES[self.size],
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "MARKS": str(place / "marks"),
            "MARK_STEPS": f"{self.warm_steps},{self.warm_steps + self.steps}",
            "ELASTIC__TRAINING__STEPS": str(self.warm_steps + self.steps),
            "ELASTIC__TRAINING__NUMERICS": self.numerics,
            "ELASTIC__CHECKPOINT__MEMORY_EVERY_STEPS": str(self.memory_every),
            "ELASTIC__CHECKPOINT__SAVE_PATH": str(place / "checkpoint"),
        }


def launch(command: Sequence[str], place: Path, plan: Plan, **environ: str) -> str:
    """Run one side to its end; what it wrote as its marks."""
    place.mkdir()
    with (place / "log").open("wb") as log:
        done = subprocess.run(
            [str(TORCHRUN), *command], cwd=ROOT, env={**plan.environ(place), **environ}, stdout=log, stderr=log,
            timeout=LIMIT_S, check=False,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}:\n{(place / 'log').read_text()[-3000:]}")
    return (place / "marks").read_text()


def cost(command: Sequence[str], place: Path, plan: Plan, **environ: str) -> Cost:
    """Run one side and take the difference of its two marks."""
    first, last = (json.loads(line) for line in launch(command, place, plan, **environ).splitlines())
    steps = last["step"] - first["step"]
    assert steps == plan.steps
    return Cost(wall_s=(last["wall_s"] - first["wall_s"]) / steps, cpu_s=(last["cpu_s"] - first["cpu_s"]) / steps)


def elastic_options(place: Path) -> list[str]:
    """torchrun's, for our side."""
    return ["--nnodes=1:1", "--nproc-per-node=2", "--rdzv_backend=etcd", f"--rdzv-id={place.name}"]


def ours(endpoint: str, place: Path, plan: Plan) -> Cost:
    """The whole system; checks that it did what it says."""
    found = cost(
        [*elastic_options(place), "elastic/worker.py"],
        place, plan, ETCD_ENDPOINTS=endpoint, ELASTIC__JOB__TARGET="tests.bench.overhead_job:job",
    )  # fmt: skip
    records = [record.event for record in read_records(place / "checkpoint" / "events")]
    assert len([event for event in records if isinstance(event, StepCommitted)]) == 2 * (plan.warm_steps + plan.steps)
    assert len([event for event in records if isinstance(event, RunFinished)]) == 2
    return found


def bare(place: Path, plan: Plan) -> Cost:
    """The plain DDP loop."""
    return cost(["--standalone", "--nproc-per-node=2", "tests/bench/overhead_ddp.py"], place, plan)


def in_turns(endpoint: str, place: Path, plan: Plan) -> list[Row]:
    """What our part of a worker costs a step, beside DDP's step in the same process; and the agent, of one core."""
    marks = launch([*elastic_options(place), "tests/bench/overhead_turns.py"], place, plan, ETCD_ENDPOINTS=endpoint)
    found = json.loads(marks)
    rows = []
    for what, clock in (("seconds", "wall_s"), ("CPU seconds", "cpu_s")):
        turns = found[clock]
        assert len(turns) == plan.steps
        ratios = sorted(mine / theirs for mine, theirs in turns)
        low, high = bounds(ratios)
        case = f"{what} of {len(turns)} steps in turns with DDP's in the same processes, all of them together"
        case += f" (single ones: median {median(ratios):.3f}, {low:.3f} to {high:.3f} with 95 %)"
        whole = sum(mine for mine, _ in turns) / sum(theirs for _, theirs in turns)
        rows.append(Row(case=case, ours=whole, peer=1.0, limit=None, unit="x", target="told only", met=True))
    case = "CPU of agent and lease keeper meanwhile, of one core"
    share = found["agent_share"]
    return [*rows, Row(case=case, ours=share, peer=None, limit=None, unit="share", target="told only", met=True)]


def row(what: str, mine: Sequence[float], theirs: Sequence[float], *, judged: bool) -> Row:
    """The median of the ratios of pairs, with the end of their upper quarter in the case's words."""
    ratios = sorted(one / other for one, other in zip(mine, theirs, strict=True))
    low, high = bounds(ratios)
    return Row(
        case=f"{what} of a step, ours / DDP, {len(ratios)} pairs ({low:.3f} to {high:.3f} with 95 %)",
        ours=median(ratios),
        peer=1.0,
        limit=None,
        unit="x",
        target="median <= 1.02, upper bound <= 1.03" if judged else "told only",
        met=not judged or (median(ratios) <= 1.02 and high <= 1.03),
    )


def bounds(ratios: Sequence[float]) -> tuple[float, float]:
    """Between these two of the sorted values the median lies with at least 95 % (sign test); few values: the ends."""
    count, left, chance = len(ratios), 0, 0.5 ** len(ratios)
    tail, term = chance, chance
    while tail <= 0.025 and left < count // 2:
        left += 1
        term = term * (count - left + 1) / left
        tail += term
    low = max(0, left - 1)
    return ratios[low], ratios[count - 1 - low]


def main() -> None:
    """Measure, print, and fail when the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--memory-every", type=int, default=10, help="steps from one copy in memory to the next")
    parser.add_argument("--numerics", choices=["plain", "exact"], default="plain")
    parser.add_argument("--quick", action="store_true", help="one pair of a tiny model")
    args = parser.parse_args()
    plan = Plan(
        size="tiny" if args.quick else "full",
        warm_steps=3 if args.quick else 2 * args.memory_every + 1,
        steps=5 if args.quick else args.steps,
        numerics=args.numerics,
        memory_every=args.memory_every,
    )
    mine, theirs = [], []
    with tempfile.TemporaryDirectory(prefix="elastic-bench-") as name, EtcdServer(Path(name) / "etcd") as server:
        for pair in range(1 if args.quick else args.pairs):
            turns = [
                lambda pair=pair: mine.append(ours(server.endpoint, Path(name) / f"ours-{pair}", plan)),
                lambda pair=pair: theirs.append(bare(Path(name) / f"bare-{pair}", plan)),
            ]
            for turn in turns if pair % 2 == 0 else reversed(turns):
                turn()
            print("ours", mine[-1], "DDP", theirs[-1], flush=True)
        longer = plan if args.quick else replace(plan, steps=100)
        turned = in_turns(server.endpoint, Path(name) / "turns", longer)
    rows = [
        row(
            f"{what} (a copy in memory each {args.memory_every} steps)",
            [getattr(one, field) for one in mine],
            [getattr(one, field) for one in theirs],
            judged=not args.quick,
        )
        for what, field in (("seconds", "wall_s"), ("CPU seconds", "cpu_s"))
    ] + turned
    show("overhead", rows)
    if not all(each.met for each in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
