"""`make bench-checkpoint`: what a save costs and how long a restore takes, beside the peers and the machine's limits.

A model and its AdamW state of 500 MB and of 2 GB, on one core, everything in one process and interleaved, so that all
meet the same machine. Medians. `--tiny` is for the test suite: it checks that what is counted is right, never a time.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from pathlib import Path
from statistics import median

import torch

from elastic.checkpoint.mapping import Mapping
from tests.bench import checkpoint_peers as peers
from tests.bench.checkpoint_state import SIZES, Cost, Own, build, measured, tensors
from tests.bench.table import Row, show

PAIRS = 5
"""How often a round copies the state, we and the plain memcpy in turn."""
WARM = 5
"""Saves before the first one that is measured: until memory is there, and files to write over."""

Samples = dict[str, list[float]]


def one_round(own: Own, tracked: dict[str, object], place: Path, iteration: int, found: Samples) -> None:
    """One save of everybody's and one restore."""
    state = tensors(tracked)
    limits = peers.Limits(state, place)
    for _ in range(PAIRS):
        note(found, "limit stall", limits.copy())
        note(found, "copy", measured(lambda: own.manager.snapshot(tracked, own.at(iteration - 1))))
    note(found, "limit durable", limits.write())
    note(found, "limit read", limits.read())
    note(found, "limit back", limits.copy_back())
    del limits
    own_save(own, tracked, iteration, found)
    cost = peers.fresh(place / "p1", lambda at: peers.torch_save(state, at))
    found["torch.save durable"].append(cost.wall_s)
    cost = peers.fresh(place / "p2", lambda at: peers.safetensors_save(state, at))
    found["safetensors durable"].append(cost.wall_s)

    def both(at: Path) -> None:
        saved = peers.dcp_save(state, at)
        found["dcp.save durable"].append(saved.wall_s)
        found["dcp.save cpu"].append(saved.cpu_s)
        note(found, "dcp.load", peers.dcp_load(state, at))

    peers.fresh(place / "p3", both)
    stall, done = peers.fresh(place / "p4", lambda at: peers.dcp_async(state, at))
    found["dcp.async stall"].append(stall.wall_s)
    found["dcp.async durable"].append(done.wall_s)


def note(found: Samples, name: str, cost: Cost) -> None:
    """Keep what something cost: by the clock, and of the CPU, which says more where the machine is shared."""
    found[name].append(cost.wall_s)
    found[f"{name} cpu"].append(cost.cpu_s)


def own_save(own: Own, tracked: dict[str, object], iteration: int, found: Samples) -> None:
    """Ours: how long the caller waits, until it is committed, what it takes of the CPU; then both restores."""
    commits = own.committer
    begun, cpu = time.perf_counter(), time.process_time()
    own.manager.save(tracked, own.at(iteration), wait=False)
    found["stall"].append(time.perf_counter() - begun)
    while own.manager.advance(all_ready=True) is None:
        pass
    ended = time.perf_counter()
    found["durable"].append(ended - begun)
    found["cpu"].append(time.process_time() - cpu)
    found["commit"].append(own.granted_s - own.storage.shards_down_s)
    assert commits.kept is not None
    assert commits.kept.iteration == iteration
    own.manager.settle()
    own.manager.close()
    restored = []
    note(found, "restore memory", measured(lambda: restored.append(own.start().restore(tracked))))
    own.manager.close()
    own.forget_memory()
    for path in own.root.glob(f"iteration_{iteration:08d}/*"):
        path.read_bytes()  # so that it is in the page cache
    note(found, "restore disk", measured(lambda: restored.append(own.start().restore(tracked))))
    assert [(each.tier, each.iteration) for each in restored] == [("memory", iteration), ("disk", iteration)]
    have_memory(tracked)
    own.manager.snapshot(tracked, own.at(iteration))  # both arenas have their memory again
    own.manager.snapshot(tracked, own.at(iteration))


def rows(size: str, found: Samples) -> list[Row]:
    """The table of one size: medians."""
    mid = {name: median(values) for name, values in found.items()}

    def row(case: str, ours: str, peer: str | None, limit: str | None, target: str, most: float) -> Row:
        return Row(
            case=f"{size}: {case}",
            ours=1000 * mid[ours],
            peer=1000 * mid[peer] if peer else None,
            limit=1000 * mid[limit] if limit else None,
            unit="ms",
            target=target,
            met=mid[ours] <= most,
        )

    def processor(case: str, ours: str, peer: str | None, limit: str, times: float) -> Row:
        most = times * mid[f"limit {limit} cpu"]
        return row(f"CPU {case}", f"{ours} cpu", peer, f"limit {limit} cpu", f"<= {times:g} x limit", most)

    copy, disk, read, back = (mid[f"limit {name}"] for name in ("stall", "durable", "read", "back"))
    written, share = "<= 1.3 x limit", 0.6 * mid["dcp.save cpu"]
    return [
        row("copied to memory", "copy", "dcp.async stall", "limit stall", "<= 1.1 x memcpy", 1.1 * copy),
        row("training stalled by a save", "stall", "dcp.async stall", "limit stall", "<= 1.1 x memcpy", 1.1 * copy),
        row("durable; safetensors", "durable", "safetensors durable", "limit durable", written, 1.3 * disk),
        row("durable; torch.save", "durable", "torch.save durable", "limit durable", written, 1.3 * disk),
        row("durable; dcp.save", "durable", "dcp.save durable", "limit durable", written, 1.3 * disk),
        row("durable; dcp.async", "durable", "dcp.async durable", "limit durable", written, 1.3 * disk),
        row("CPU with checksums; dcp.save", "cpu", "dcp.save cpu", "limit durable cpu", "<= 60 % of the peer", share),
        row("restore, warm; dcp.load", "restore disk", "dcp.load", "limit read", "<= 1.2 x preadv", 1.2 * read),
        row("restore from memory", "restore memory", None, "limit back", "<= 1.2 x memcpy", 1.2 * back),
        processor("of a copy to memory", "copy", None, "stall", 1.1),
        processor("of a restore; dcp.load", "restore disk", "dcp.load cpu", "read", 1.2),
        processor("of a restore from memory", "restore memory", None, "back", 1.2),
        row("commit, bytes down", "commit", None, None, "<= 10 ms", 0.010),
    ]


def bench(size: str, rounds: int, directory: Path) -> list[Row]:
    """All rounds of one size."""
    tracked = build(size)
    have_memory(tracked)
    own = Own(directory / "root")
    found: Samples = defaultdict(list)
    for iteration in range(1, WARM + 1):
        own.manager.save(tracked, own.at(iteration))
    for number in range(rounds):
        place = directory / f"round{number}"
        place.mkdir()
        one_round(own, tracked, place, WARM + number + 1, found)
        (place / "recycled").unlink()
        print(
            f"{size}, round {number + 1} of {rounds}", {k: round(1000 * v[-1], 1) for k, v in found.items()}, flush=True
        )
    own.close()
    return rows(size, found)


def have_memory(tracked: dict[str, object]) -> None:
    """Use twice the state's memory once, in huge pages, and give it back: what a virtual machine never used it gets
    from its host at the first touch of each page, which takes far longer than all that is measured here."""
    size_bytes = 2 * sum(each.numel() * each.element_size() for each in tensors(tracked).values())
    Mapping(None, size_bytes).populate(fresh=True, cpu_s=lambda: 0.0)


def main() -> None:
    """Measure, print, and fail when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="a small state, once; times mean nothing then")
    parser.add_argument("--size", choices=[size for size in SIZES if size != "tiny"], action="append")
    parser.add_argument("--directory", type=Path, help="on the file system to write to")
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # of the peers
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    table: list[Row] = []
    for size in ["tiny"] if args.tiny else args.size or ["500 MB", "2 GB"]:
        with tempfile.TemporaryDirectory(prefix="elastic-bench-", dir=args.directory) as name:
            table += bench(size, 1 if args.tiny else args.rounds, Path(name))
    show("checkpoint", table)
    if not args.tiny and not all(row.met for row in table):
        sys.exit(1)


if __name__ == "__main__":
    main()
