"""A rank that goes from group to group: joins, works until it loses a peer or is told to leave, leaves, joins anew."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import nn

from elastic.distributed.dealing import Dealt
from elastic.distributed.group import Collectives
from elastic.distributed.joining import join
from elastic.distributed.links import Links
from elastic.distributed.peers import is_peer_lost
from elastic.distributed.replicate import Replica
from elastic.distributed.strategy import Strategy
from elastic.errors import PeerLost
from elastic.world import World
from tests.harness.training import CLASSES, FEATURES, course, per_sample

WIDTH = 384


class Word:
    """The line to the test: what came in is queued, but a word to cut is obeyed at once, by the reading thread."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.commands: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.links: Links | None = None
        self.leaving = threading.Event()
        threading.Thread(target=self._listen, name="line", daemon=True).start()

    def say(self, **what: Any) -> None:
        self._connection.send_bytes(json.dumps(what).encode())

    def _listen(self) -> None:
        with contextlib.suppress(EOFError):
            while True:
                command = json.loads(self._connection.recv_bytes())
                if command["do"] == "cut":
                    assert self.links is not None
                    self.links.cut()
                elif command["do"] == "leave":
                    self.leaving.set()
                else:
                    self.commands.put(command)
        os._exit(0)  # the test is gone


def main(connection: Connection, role: str) -> None:
    """Entry point of a process. One command at a time: join, or end."""
    torch.set_num_threads(1)
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    word, work = Word(connection), WORKS[role]()
    word.say(ready=os.getpid())
    while (command := word.commands.get())["do"] == "join":
        _one_group(word, work, command)
    word.say(ended=True)
    os._exit(0)


def _one_group(word: Word, work: Work, command: dict[str, Any]) -> None:
    world = World(rank=command["rank"], size=command["size"], generation=command["generation"], distributed=True)
    store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(command["port"]), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    word.leaving.clear()
    links = word.links = Links()
    hook = sys.excepthook
    word.say(joining=world.generation)
    try:
        group = join(world, links=links, environ=store)
    except PeerLost as error:
        word.say(lost=str(error), left=world.generation)
        return
    first = torch.full((1000,), world.rank + 1.0)
    group.sum_(first)
    word.say(joined=world.generation, first=first.unique().tolist(), sockets=_sockets(), threads=_threads())
    word.say(**_until_lost(word, work, group))
    group.leave()
    work.forget()
    assert sys.excepthook is hook, "torch's hooks must not pile up"
    word.say(left=world.generation)


def _until_lost(word: Word, work: Work, group: Collectives) -> dict[str, Any]:
    """Steps until all are told to leave, or until one goes missing."""
    try:
        for _ in work.steps(group):
            word.say(step=True)
            told = torch.tensor([float(word.leaving.is_set())])
            group.sum_(told)
            if told.item():
                return {"told": True}
    except (PeerLost, RuntimeError) as error:
        if not (isinstance(error, PeerLost) or group.broken or is_peer_lost(error)):
            raise
        group.cut()
        return {"lost": str(error)}
    return {}


class Work:
    """Bare collectives."""

    def steps(self, group: Collectives) -> Iterator[None]:
        tensor = torch.ones(1 << 19)
        while True:
            group.sum_(tensor.fill_(1))
            assert tensor[0] == group.size
            yield

    def forget(self) -> None:
        """Drop what must not outlive the group."""


class Copies(Work):
    """Copies so large that whoever dies leaves one half done."""

    def __init__(self, copy: Callable[[Collectives, torch.Tensor], None]) -> None:
        self.copy = copy

    def steps(self, group: Collectives) -> Iterator[None]:
        tensor = torch.zeros(1 << 27, dtype=torch.uint8)
        while True:
            yield
            self.copy(group, tensor)


def _hand_over(group: Collectives, tensor: torch.Tensor) -> None:
    if group.rank:
        group.receive_(tensor, source=0)
    else:
        group.send(tensor, to=1)


class Steps(Work):
    """Whole steps of a model, as a session does them."""

    def __init__(self, lay: Callable[[nn.Module, Collectives], Strategy], **options: Any) -> None:
        self.lay, self.options = lay, options
        self.lies: Strategy | None = None

    def steps(self, group: Collectives) -> Iterator[None]:
        torch.manual_seed(0)
        if isinstance(self.lies, Replica):
            self.lies.group = group  # the same model and the same reducer, in another group
        else:
            self.lies = self.lay(_model(), group)
        lies = self.lies
        lies.align()
        optimizer = torch.optim.SGD(lies.model.parameters(), lr=0.01)
        lies.adopt(optimizer)
        run = course(rank=group.rank, size=group.size, group=group, steps=10**6, **self.options)
        while True:
            step = run.next_step(group, (lies,), lambda: False)
            with step:
                for batch in step.micro_batches():
                    step.backward(per_sample(lies.model, batch))
                optimizer.step()
            run.commit(step)
            yield


class ShardedSteps(Steps):
    """Steps of a model whose parameters are dealt out: it is dealt out anew in the next group."""

    def forget(self) -> None:
        self.lies = None
        gc.collect()  # the module is a cycle, and holds the old group


WORKS: dict[str, Callable[[], Work]] = {
    "sum": Work,
    "broadcast": lambda: Copies(lambda group, tensor: group.broadcast_(tensor)),
    "handover": lambda: Copies(_hand_over),
    "replica": lambda: Steps(Replica),
    "tree": lambda: Steps(lambda model, group: Replica(model, group, exact=True), numerics="exact"),
    "sharded": lambda: ShardedSteps(Dealt),
}


def _model() -> nn.Module:
    first, last = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, CLASSES)
    middle = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)])
    return nn.Sequential(first, nn.Sequential(*middle), last).double()


def _sockets() -> int:
    return sum(os.path.islink(path) and os.readlink(path).startswith("socket:") for path in _descriptors())


def _descriptors() -> list[str]:
    return [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))
