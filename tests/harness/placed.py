"""Workers without agents: real processes in real groups, each with a line to the test that a pipe makes.

The test hands out places and kills; a worker runs an own loop in a session. Neither torchrun nor etcd is there.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from elastic.link import Answer, NoLink, Place, Stays
from elastic.local.node import ROOT
from elastic.session import run as session_module
from elastic.session.run import Session
from elastic.world import ARENAS, GENERATION, NODE
from tests.harness import small_job
from tests.harness.arenas import KINDS

LIMIT_S = 180.0
KEEP = {"keep": "all nodes may be going"}


class Pipe(NoLink):
    """The line to the test: places come in, words go out. The record of the last commit is a file."""

    present = True

    def __init__(self, record: Path) -> None:
        super().__init__()
        self._record, self._places, self._regroup = record, queue.Queue[Place](), False
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            place = json.loads(line)
            if place == KEEP:
                self.keep_wanted = True
            elif place:
                self._places.put(Place(environ=place))
            else:
                self._regroup = True

    def regroup_wanted(self) -> bool:
        return self._regroup

    def send_stays(self, stays: Stays) -> None:
        say(stays=stays.generation, lost=stays.lost)

    def next_place(self, *, limit_s: float) -> Place | None:
        try:
            place = self._places.get(timeout=limit_s)
        except queue.Empty:
            return None
        self._regroup = False
        return place

    def ask(self, what: str, *, value: str | None = None) -> Answer:
        if what == "commit" and value is not None:
            self._record.write_text(value)
            return Answer(granted=True, reason="")
        return Answer(granted=True, reason="", value=self._record.read_text() if self._record.exists() else None)


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


@torch.no_grad()
def digest(model: torch.nn.Module) -> str:
    """Of all parameters; every rank calls it."""
    found = hashlib.sha256()
    for each in model.parameters():
        whole = each.full_tensor() if isinstance(each, DTensor) else each
        found.update(whole.contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def main() -> None:
    root, most = Path(os.environ["PLACED_ROOT"]), int(os.environ["PLACED_STEPS"])
    torch.set_num_threads(1)
    session_module.connect = lambda world: Pipe(root / "record")  # type: ignore[assignment]
    with Session(
        global_batch_size=22,
        micro_batch_size=4,
        steps=most,
        strategy=os.environ["PLACED_STRATEGY"],
        numerics=os.environ["PLACED_NUMERICS"],
        save_path=str(root / "checkpoint"),
        save_interleaved_steps=int(os.environ["PLACED_SAVE_STEPS"]),
        memory_every_steps=1,
    ) as run:
        model = run.parallelize(small_job.build_model(run.world))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=7)
        run.track(model=model, optimizer=optimizer, schedule=schedule)
        for step in run.steps(small_job.build_dataset()):
            with step:
                for batch in step.micro_batches():
                    step.backward(small_job.loss(model, batch))
                step.clip_grad_norm_(1.0)
                optimizer.step()
            if step.done:
                schedule.step()
                say(step=step.iteration, size=run.world.size, generation=run.world.generation, loss=step.totals.loss)
        say(digest=digest(model), pid=os.getpid())


class Worker:
    """One process, on a node of its own."""

    def __init__(self, node: str, root: Path, environ: dict[str, str]) -> None:
        self.node = node
        paths = [root / node / kind for kind in KINDS]
        (root / node).mkdir(exist_ok=True, parents=True)
        for path in paths:
            path.touch()
        self._errors = (root / f"{node}.err").open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.harness.placed"],
            cwd=ROOT,
            env={**os.environ, **environ, NODE: node, ARENAS: ",".join(map(str, paths))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.pid = self._process.pid
        self._words: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.said: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._words.put(json.loads(line))
        self._words.put(None)

    def place(self, environ: dict[str, str]) -> None:
        """Give it a place; an empty one asks for a regroup, and KEEP is none: it is to save what it has."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(environ) + "\n")
        self._process.stdin.flush()

    def hear(self, what: str, *, least: Any = None) -> dict[str, Any]:
        """Its next word of this kind, of at least this much."""
        while (word := self._words.get(timeout=LIMIT_S)) is not None:
            self.said.append(word)
            if what in word and (least is None or word[what] >= least):
                return word
        self._errors.flush()
        raise AssertionError(f"{self.node} ended without {what}: {Path(self._errors.name).read_text()[-3000:]}")

    def end(self) -> int:
        """Wait for its end; its exit code."""
        return self._process.wait(LIMIT_S)

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self.kill()
        self._process.wait()
        self._thread.join()
        self._errors.close()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class Places:
    """Hands out places in one generation after another, whose workers meet at one store."""

    def __init__(self, root: Path, *, steps: int, numerics: str, save_steps: int, strategy: str) -> None:
        self.root, self.workers, self.generation = root, dict[str, Worker](), 0
        self._store = dist.TCPStore(
            "127.0.0.1", 0, is_master=True, timeout=datetime.timedelta(seconds=60), wait_for_workers=False
        )
        self._environ = {
            "PLACED_ROOT": str(root),
            "PLACED_STEPS": str(steps),
            "PLACED_NUMERICS": numerics,
            "PLACED_STRATEGY": strategy,
            "PLACED_SAVE_STEPS": str(save_steps),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
        }

    def form(self, *nodes: str) -> None:
        """The next generation, of these nodes in rank order: those at work get a place, others are started."""
        self.generation += 1
        for rank, node in enumerate(nodes):
            place = {"RANK": str(rank), "WORLD_SIZE": str(len(nodes)), GENERATION: str(self.generation)}
            if node in self.workers:
                self.workers[node].place(place)
            else:
                self.workers[node] = Worker(node, self.root, self._environ | place)

    def lose(self, node: str) -> None:
        """Kill a worker, whose node keeps its memory."""
        self.workers.pop(node).close()

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()


if __name__ == "__main__":
    main()
