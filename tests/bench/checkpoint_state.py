"""The state that `make bench-checkpoint` saves: a GPT's parameters and AdamW's moments, and ours at work on it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from elastic.checkpoint.layout import CommitRecord
from elastic.checkpoint.manager import CheckpointManager
from elastic.checkpoint.memory import MemoryTier, Places
from elastic.checkpoint.room import anonymous_arena
from elastic.checkpoint.root import claim
from elastic.checkpoint.seams import AloneGroup, CommitVerdict
from elastic.checkpoint.storage import PosixStorage
from elastic.events import Event
from tests.harness.checkpoints import CheckpointSettings, meta

LAYER = (3, 1, 4, 4)
"""Matrices of a block, in squares of the width: 12 in all."""


class Parameters(nn.Module):
    """As many and as large tensors as a GPT of this width and depth has; never run."""

    def __init__(self, *, width: int, layers: int, vocabulary: int) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.randn(vocabulary, width))
        for layer in range(layers):
            for at, squares in enumerate(LAYER):
                self.register_parameter(f"layer{layer}_{at}", nn.Parameter(torch.randn(squares * width, width)))
            self.register_parameter(f"layer{layer}_norm", nn.Parameter(torch.randn(width)))


SIZES = {
    "tiny": {"width": 32, "layers": 3, "vocabulary": 64},
    "500 MB": {"width": 512, "layers": 12, "vocabulary": 7568},
    "2 GB": {"width": 1024, "layers": 12, "vocabulary": 15300},
}
"""12 bytes for each parameter: its value and two moments."""


def build(size: str) -> dict[str, object]:
    """Model and optimizer after one step, without gradients."""
    model = Parameters(**SIZES[size])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return {"model": model, "optimizer": optimizer}


def tensors(tracked: dict[str, object]) -> dict[str, torch.Tensor]:
    """The same state as plain names and tensors, for the peers and the limits."""
    model, optimizer = tracked["model"], tracked["optimizer"]
    found = {name: parameter.detach() for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        found |= {f"{key}.{name}": value for key, value in optimizer.state[parameter].items()}
    return found


@dataclass
class Cost:
    """Seconds, by the clock and of this process's CPU, all threads together."""

    wall_s: float
    cpu_s: float


def measured(work: Callable[[], object]) -> Cost:
    """What doing it costs."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Cost(wall_s=time.perf_counter() - wall, cpu_s=time.process_time() - cpu)


class Watched(PosixStorage):
    """Notes when the small files of a commit begin, after all shards are down."""

    def __init__(self) -> None:
        self.shards_down_s = 0.0
        self.shards = 0

    def write(self, path: str, data: bytes | memoryview) -> None:
        if path.endswith("common.json"):
            self.shards_down_s = time.perf_counter()
        super().write(path, data)
        self.shards += path.endswith(".safetensors")


@dataclass
class Own:
    """Our manager over a root, with arenas as an agent lends them."""

    root: Path
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.committer = self
        self.kept: CommitRecord | None = None
        self.granted_s = 0.0
        self.storage = Watched()
        self._fds = []
        self._paths = []
        for _ in range(2):
            fd, path = anonymous_arena("elastic-bench")
            self._fds.append(fd)
            self._paths.append(path)
        self.generation = 0
        self.manager = self.start()

    def record(self) -> CommitRecord | None:
        return self.kept

    def commit(self, record: CommitRecord) -> CommitVerdict:
        """As etcd would, without the way there."""
        self.kept, self.granted_s = record, time.perf_counter()
        return CommitVerdict(granted=True, reason="nobody else is there")

    def fence(self) -> str | None:
        return None

    def start(self) -> CheckpointManager:
        """What a worker does at its start. A later one finds what the earlier ones left in memory."""
        self.generation += 1
        settings = CheckpointSettings(
            save_path=str(self.root), save_mode="async", save_max=2, memory_every_steps=1, save_interleaved_steps=1
        )
        self.tier = MemoryTier(Places(own=(self._paths[0], self._paths[1])))
        self.manager = CheckpointManager(
            settings,
            identity=claim(str(self.root), job_id="bench"),
            group=AloneGroup(),
            committer=self.committer,
            emit=self.events.append,
            storage=self.storage,
            generation=self.generation,
            tier=self.tier,
        )
        return self.manager

    def forget_memory(self) -> None:
        """As after the loss of the node."""
        for fd in self._fds:
            os.ftruncate(fd, 0)

    def at(self, iteration: int) -> object:
        """What is saved at an iteration beside the tensors."""
        return meta(iteration, generation=self.generation)

    def close(self) -> None:
        self.manager.close()
        for fd in self._fds:
            os.close(fd)
