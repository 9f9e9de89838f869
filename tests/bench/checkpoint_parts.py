"""What copies of a dealt out state in memory cost, and how long a restore from them takes, beside one from disk.

`python -m tests.bench.checkpoint_parts [SIZE]`: three ranks on this machine, each a node with memory of its own. The
third is lost, and two go on: from memory, and, without what the peers kept, from disk (its pages still in memory).
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from elastic.distributed.fsdp import Sharded
from elastic.distributed.joining import join
from elastic.session.ending import exit_now
from elastic.world import World
from tests.bench.checkpoint_state import build
from tests.harness.arenas import open_node
from tests.harness.checkpoints import Bench, meta

RANKS, REPEATS, SHARED = 3, 5, Path("/dev/shm")


def rank_main() -> None:
    torch.set_num_threads(1)
    rank, root = int(os.environ["RANK"]), Path(os.environ["BENCH_ROOT"])
    bench, told = Bench(root / "disk"), dict[str, Any]()
    for at, (size, tiers) in enumerate([(3, True), (3, True), (2, True), (2, False)], start=1):
        if rank >= size:
            continue
        group = join(World(rank=rank, size=size, generation=at, distributed=True))
        tracked = build(os.environ["BENCH_SIZE"])
        tracked["model"] = Sharded(tracked["model"], group).model  # type: ignore[arg-type]
        tracked["optimizer"] = torch.optim.AdamW(tracked["model"].parameters(), lr=1e-3)  # type: ignore[attr-defined]
        for parameter in tracked["model"].parameters():  # type: ignore[attr-defined]
            parameter.grad = torch.ones_like(parameter)
        tracked["optimizer"].step()
        tier = open_node(root / "memory", f"node{rank}") if tiers else None
        peers = at > 1
        manager = bench.manager(group=group, generation=at, tier=tier, memory_every_steps=1, memory_peers=int(peers))
        group.broadcast(None)
        begun_s = time.monotonic()
        restored = manager.restore(tracked)
        group.gather(None)
        told[f"restore {at}: {size} ranks"] = [restored.tier, round(time.monotonic() - begun_s, 3)]
        if at == 1:
            manager.save(tracked, meta(1, generation=1))
        if tiers:
            told[f"copy {at}: {size} ranks, {peers=}"] = copies(manager, group, tracked, at)
        group.leave()
    print(json.dumps(told), flush=True)
    exit_now(0)


def copies(manager: Any, group: Any, tracked: Any, generation: int) -> float:
    """Least seconds of a copy, once both arenas are there."""
    took_s = []
    for step in range(2 + REPEATS):
        group.gather(None)
        begun_s = time.monotonic()
        manager.snapshot(tracked, meta(10 * generation + step, generation=generation))
        took_s.append(time.monotonic() - begun_s)
    return round(min(took_s[2:]), 3)


def main() -> None:
    """Prints what rank 0 saw: tier and seconds of each restore; the least seconds of a copy."""
    store = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, timeout=datetime.timedelta(seconds=60), wait_for_workers=False
    )
    with tempfile.TemporaryDirectory(dir=SHARED if SHARED.is_dir() else None) as root:
        environ = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "GLOO_SOCKET_IFNAME": "lo",
            "BENCH_ROOT": root,
            "BENCH_SIZE": sys.argv[1] if len(sys.argv) > 1 else "500 MB",
        }
        command = [sys.executable, "-m", "tests.bench.checkpoint_parts", "rank"]
        ranks = [
            subprocess.Popen(command, env={**environ, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
            for rank in range(RANKS)
        ]
        outputs = [each.communicate(timeout=280)[0] for each in ranks]
    print(outputs[0].splitlines()[-1])


if __name__ == "__main__":
    rank_main() if sys.argv[1:] == ["rank"] else main()
