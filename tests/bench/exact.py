"""`make bench-exact`: the bits at each world size, and what they cost beside our plain sum and torch's DDP.

Prints a hash of all parameters and optimizer state for each world size, of replicas and of dealt out parameters, after
a training with dropout, clipping, AdamW, a schedule, accumulation, uneven shares and mixed precision; then ratios of
step times, measured in turns in the same processes. `--quick` is for the test suite: a tiny model, no judgement of
times.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from elastic.plan.tree import sharings, told
from tests.bench.ranks import run_ranks
from tests.bench.table import Row, show

NAMES = ("float32", "autocast to bfloat16", "bfloat16 parameters", "8 slots")
DEALT_NAMES = (*NAMES, "3 slots")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A world size and a number of slots, with the most that exact may cost over plain; None: only told."""

    world_size: int
    slots: int
    most: float | None


CASES = (
    Case(world_size=1, slots=8, most=1.02),
    Case(world_size=2, slots=8, most=1.02),
    Case(world_size=2, slots=2, most=1.02),
    Case(world_size=3, slots=12, most=1.05),
    Case(world_size=4, slots=8, most=1.05),
    Case(world_size=2, slots=6, most=None),
    Case(world_size=3, slots=8, most=None),
)
DEALT = Case(world_size=2, slots=8, most=None)
QUICK = (Case(world_size=1, slots=3, most=None), Case(world_size=2, slots=3, most=None))


def hashes(worlds: range, directory: Path, *, role: str, names: Sequence[str]) -> list[Row]:
    """The table of bits; one row for each kind of training: how many different hashes the world sizes gave."""
    runs = {}
    print(f"{role}: hashes after training: " + ", ".join(names))
    for size in worlds:
        command = [sys.executable, "-m", "tests.harness.gloo_rank", role]
        everyone = run_ranks(command, size=size, store_file=directory / f"{role}-{size}")
        outs = [json.loads(out.splitlines()[-1])["runs"] for out in everyone]
        assert all(out == outs[0] for out in outs), "replicas differ"
        runs[size] = outs[0]
        print(f"W={size}  " + "  ".join(digest for digest, _ in outs[0]), flush=True)
    return [
        Row(
            case=f"{role}: {name}, W={worlds.start}..{worlds.stop - 1}: different hashes",
            ours=float(len({runs[size][number][0] for size in worlds})),
            peer=None,
            limit=None,
            unit="hashes",
            target="1",
            met=len({runs[size][number][0] for size in worlds}) == 1,
        )
        for number, name in enumerate(names)
    ]


def overhead(case: Case, *, size: str, blocks: int, steps: int) -> list[Row]:
    """Exact against plain, and plain against DDP: medians of the ratios of neighbouring blocks."""
    cpu, seconds = _measure(case, ("ddp", "plain", "exact"), size=size, blocks=blocks, steps=steps)
    shape = f"W={case.world_size}, {case.slots} slots"
    rows = [
        _ratio(f"{shape}: exact / plain", seconds["exact"], seconds["plain"], most=case.most),
        _ratio(f"{shape}: exact / plain, CPU of all workers", cpu["exact"], cpu["plain"], most=None),
        _ratio(f"{shape}: plain / DDP", seconds["plain"], seconds["ddp"], most=None if case.most is None else 1.02),
        _ratio(f"{shape}: plain / DDP, CPU of all workers", cpu["plain"], cpu["ddp"], most=None),
    ]
    print(*(f"  {row.case}  {row.ours:.3f}" for row in rows), sep="\n", flush=True)
    return rows


def _measure(
    case: Case, contenders: Sequence[str], *, size: str, blocks: int, steps: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """CPU seconds and seconds of the blocks of each contender."""
    command = [sys.executable, "-m", "tests.bench.exact_rank", f"--size={size}", f"--slots={case.slots}"]
    options = [f"--blocks={blocks}", f"--steps={steps}", "--contenders", *contenders]
    out = run_ranks([*command, *options], size=case.world_size)[0]
    found: dict[str, list[tuple[float, float]]] = json.loads(out.splitlines()[-1])
    assert all(len(each) == blocks for each in found.values())
    cpu, seconds = ({name: [one[at] for one in each] for name, each in found.items()} for at in (1, 0))
    shown = {name: f"{median(each) / steps * 1000:.1f} ms a step" for name, each in seconds.items()}
    print(f"W={case.world_size}, {case.slots} slots", shown, flush=True)
    return cpu, seconds


def dealt_overhead(case: Case, *, size: str, blocks: int, steps: int) -> list[Row]:
    """The same of dealt out parameters, whose gradients exact numerics keep together; told only."""
    cpu, seconds = _measure(case, ("parts", "exact parts"), size=size, blocks=blocks, steps=steps)
    shape = f"W={case.world_size}, {case.slots} slots, dealt out"
    return [
        _ratio(f"{shape}: exact / plain", seconds["exact parts"], seconds["parts"], most=None),
        _ratio(f"{shape}: exact / plain, CPU of all workers", cpu["exact parts"], cpu["parts"], most=None),
    ]


def _ratio(case: str, ours: list[float], peer: list[float], *, most: float | None) -> Row:
    ratios = [one / other for one, other in zip(ours, peer, strict=True)]
    low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else (ratios[0],) * 3
    return Row(
        case=f"{case} (middle half {low:.3f} to {high:.3f})",
        ours=median(ratios),
        peer=1.0,
        limit=None,
        unit="x",
        target="told only" if most is None else f"<= {most}",
        met=most is None or median(ratios) <= most,
    )


def main() -> None:
    """Measure, print, and fail when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--steps", type=int, default=1, help="steps of a block")
    parser.add_argument("--cases", type=int, nargs="*", help="only these of the ratios, by number from 0")
    parser.add_argument("--quick", action="store_true", help="a tiny model and few steps")
    args = parser.parse_args()
    print(told(sharings(7, world_sizes=range(1, 6)), slots=7, exact=True))
    worlds = range(1, 3) if args.quick else range(1, 6)
    with tempfile.TemporaryDirectory(prefix="elastic-bench-") as name:
        rows = hashes(worlds, Path(name), role="exact", names=NAMES)
        rows += hashes(worlds, Path(name), role="exact parts", names=DEALT_NAMES)
    chosen = CASES if args.cases is None else [CASES[number] for number in args.cases]
    for case in QUICK if args.quick else chosen:
        blocks, steps = (2, 1) if args.quick else (args.blocks, args.steps)
        rows += overhead(case, size="tiny" if args.quick else "full", blocks=blocks, steps=steps)
    if args.cases is None:
        blocks, steps = (2, 1) if args.quick else (args.blocks, args.steps)
        rows += dealt_overhead(DEALT, size="tiny" if args.quick else "full", blocks=blocks, steps=steps)
    show("exact", rows)
    if not all(row.met for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
