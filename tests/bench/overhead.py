"""`make bench-overhead`: what the whole system costs beside a bare DDP loop on the same model, in turns.

Ours: torchrun with the etcd rendezvous, our agent, exporter, events, data account, loader, and a copy of the state in
memory each few steps. The peer: a bare DDP loop under `torchrun --standalone`. One node of two workers each. A pair is
one run of each, both at once: while one steps, the other one's workers stand at a gate, so that whatever the machine
does hits both alike (runs one after the other differ by more than what is measured). Seconds and CPU seconds (of
torchrun and everything below it) are those of the turns, from behind two copies in memory on: these alone touch their
pages for the first time, once in a job. Then both step in turns in the same processes, which tells what a worker does
more, and what the agent takes beside it. `--quick` is for the test suite: few steps, no judgement of times.
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
from tests.bench.overhead_cost import Cost
from tests.bench.overhead_gate import LIMIT_S, Training
from tests.bench.table import Row, show

TORCHRUN = Path(sys.executable).with_name("torchrun")
SIZES = {
    "full": {},
    "tiny": {"ELASTIC__MODEL__LAYERS": "1", "ELASTIC__MODEL__WIDTH": "32", "ELASTIC__MODEL__HEADS": "2"},
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What both sides run."""

    size: str
    warm_steps: int
    turn_steps: int
    turns: int
    numerics: str
    memory_every: int

    @property
    def steps(self) -> int:
        """Of a whole run; one more than is measured, since the last gate stands before its end."""
        return self.warm_steps + self.turn_steps * self.turns + 1

    def environ(self, place: Path) -> dict[str, str]:
        """The settings of both sides."""
        return {
            **os.environ,
            **SIZES[self.size],
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "MARK_STEPS": ",".join(str(self.warm_steps + self.turn_steps * turn) for turn in range(self.turns + 1)),
            "ELASTIC__TRAINING__STEPS": str(self.steps),
            "ELASTIC__TRAINING__NUMERICS": self.numerics,
            "ELASTIC__CHECKPOINT__MEMORY_EVERY_STEPS": str(self.memory_every),
            "ELASTIC__CHECKPOINT__SAVE_PATH": str(place / "checkpoint"),
        }


def elastic_options(place: Path) -> list[str]:
    """torchrun's, for our side."""
    return ["--nnodes=1:1", "--nproc-per-node=2", "--rdzv_backend=etcd", f"--rdzv-id={place.name}"]


def pair(endpoint: str, place: Path, plan: Plan, *, first: int) -> tuple[Cost, Cost]:
    """One run of each side in turns: what the turns of ours and of DDP's cost. `first`: who has the first turn."""
    place.mkdir()
    ours_at, bare_at = place / "ours", place / "bare"
    ours = [*elastic_options(place), "elastic/worker.py"]
    bare = ["--standalone", "--nproc-per-node=2", "tests/bench/overhead_ddp.py"]
    whole = {"ETCD_ENDPOINTS": endpoint, "ELASTIC__JOB__TARGET": "tests.bench.overhead_job:job"}
    with (
        Training([str(TORCHRUN), *ours], ours_at, environ=plan.environ(ours_at) | whole, cwd=ROOT, workers=2) as mine,
        Training([str(TORCHRUN), *bare], bare_at, environ=plan.environ(bare_at), cwd=ROOT, workers=2) as theirs,
    ):
        sides, costs = (mine, theirs), [Cost(), Cost()]
        for side in sides:
            side.arrive()
        for turn in range(plan.turns):
            for which in (first, 1 - first) if turn % 2 == 0 else (1 - first, first):
                costs[which] += sides[which].turn()
        for side in sides:
            side.finish()
    check(ours_at, plan)
    return costs[0], costs[1]


def check(place: Path, plan: Plan) -> None:
    """That ours did what it says: each step was told of by both, and one generation did it all."""
    records = read_records(place / "checkpoint" / "events")
    steps = [record for record in records if isinstance(record.event, StepCommitted)]
    assert len(steps) == 2 * plan.steps
    assert len({record.generation for record in steps}) == 1
    assert len([record for record in records if isinstance(record.event, RunFinished)]) == 2


def in_turns(endpoint: str, place: Path, plan: Plan) -> list[Row]:
    """What our part of a worker costs a step, beside DDP's step in the same process; and the agent, of one core."""
    place.mkdir()
    environ = {**plan.environ(place), "ETCD_ENDPOINTS": endpoint, "MARKS": str(place / "marks")}
    command = [str(TORCHRUN), *elastic_options(place), "tests/bench/overhead_turns.py"]
    with (place / "log").open("wb") as log:
        done = subprocess.run(command, cwd=ROOT, env=environ, stdout=log, stderr=log, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"it ended with {done.returncode}:\n{(place / 'log').read_text()[-3000:]}")
    found = json.loads((place / "marks").read_text())
    rows = []
    for what, clock in (("seconds", "wall_s"), ("CPU seconds", "cpu_s")):
        turns = found[clock]
        assert len(turns) == plan.steps - plan.warm_steps
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
    parser.add_argument("--turns", type=int, default=6, help="turns of each side in a pair")
    parser.add_argument(
        "--memory-every", type=int, default=10, help="steps from one copy in memory to the next: a turn"
    )
    parser.add_argument("--numerics", choices=["plain", "exact"], default="plain")
    parser.add_argument("--quick", action="store_true", help="one pair of a tiny model")
    args = parser.parse_args()
    plan = Plan(
        size="tiny" if args.quick else "full",
        warm_steps=3 if args.quick else 2 * args.memory_every + 1,
        turn_steps=2 if args.quick else args.memory_every,
        turns=2 if args.quick else args.turns,
        numerics=args.numerics,
        memory_every=args.memory_every,
    )
    mine, theirs = [], []
    with tempfile.TemporaryDirectory(prefix="elastic-bench-") as name, EtcdServer(Path(name) / "etcd") as server:
        for number in range(1 if args.quick else args.pairs):
            ours, bare = pair(server.endpoint, Path(name) / f"pair-{number}", plan, first=number % 2)
            mine.append(ours)
            theirs.append(bare)
            print(f"ours {ours}, DDP {bare}: {ours.wall_s / bare.wall_s:.3f} by the clock", flush=True)
        longer = plan if args.quick else replace(plan, turns=100 // plan.turn_steps)
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
