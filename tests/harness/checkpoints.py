"""A small run to save and restore: model, AdamW, schedule; and managers over a directory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from elastic.checkpoint.draft import SaveMeta
from elastic.checkpoint.layout import CommitRecord
from elastic.checkpoint.manager import CheckpointManager
from elastic.checkpoint.root import claim
from elastic.checkpoint.seams import AloneGroup, CommitVerdict
from elastic.checkpoint.storage import PosixStorage
from elastic.clock import ManualClock
from elastic.events import Event


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """The seed's checkpoint section, as a test wants it."""

    save_path: str
    enable_save: bool = True
    save_interleaved_steps: int = 10
    save_mode: str = "sync"
    save_overlap: str = "wait"
    memory_every_steps: int = 0
    memory_peers: int = 1
    memory_required: bool = False
    no_save_optim: bool = False
    save_max: int = 5
    load_path: str = ""
    no_load_optim: bool = False
    load_balanced: bool = False
    keep_every_steps: int = 0
    checkpoint_path: str = ""
    load_unhealthy: bool = False


DEFAULTS: dict[str, Any] = {}
"""Settings of all managers that a test does not say: for whole modules of tests to run in another mode."""


class Tied(nn.Module):
    """Embedding and head share their weight; the body holds one weight that lies column by column."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.body = nn.Linear(4, 4)
        self.body.weight = nn.Parameter(self.body.weight.detach().t())
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(torch.tanh(self.body(self.embed(x)))))


@dataclass
class Run:
    """Tracked objects and the step that moves them; the batch depends on the step only."""

    tracked: dict[str, Any]
    steps: int = 0

    def step(self, count: int = 1) -> Run:
        model, optimizer = self.tracked["model"], self.tracked["optimizer"]
        for _ in range(count):
            batch = torch.arange(self.steps, self.steps + 6) % 7
            loss = nn.functional.cross_entropy(model(batch), (batch * 3) % 7)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if "schedule" in self.tracked:
                self.tracked["schedule"].step()
            self.steps += 1
        return self

    def bits(self) -> dict[str, Any]:
        """All numbers of the run, to compare exactly."""
        state = {name: value.clone() for name, value in self.tracked["model"].state_dict().items()}
        for index, entries in self.tracked["optimizer"].state_dict()["state"].items():
            state |= {f"{index}.{key}": torch.as_tensor(value).clone() for key, value in entries.items()}
        return state


def make_run(seed: int = 0, make: Callable[[Any], torch.optim.Optimizer] | None = None) -> Run:
    """A run from its first step. Another seed gives other first weights, as a wrong restore would."""
    torch.manual_seed(seed)
    model = Tied()
    optimizer = make(model) if make else torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[4, 8], gamma=0.5)
    return Run({"model": model, "optimizer": optimizer, "schedule": schedule})


def same(one: Run, other: Run) -> bool:
    """Whether two runs agree in every bit."""
    a, b = one.bits(), other.bits()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


class RecordCommitter:
    """Keeps the commit record as etcd would; `answer` may refuse."""

    def __init__(self, kept: CommitRecord | None = None) -> None:
        self.kept = kept
        self.answer = CommitVerdict(granted=True, reason="generation and lease hold")
        self.fenced: str | None = None

    def record(self) -> CommitRecord | None:
        return self.kept

    def commit(self, record: CommitRecord) -> CommitVerdict:
        if self.answer.granted:
            self.kept = record
        return self.answer

    def fence(self) -> str | None:
        return self.fenced


class NoRecord(RecordCommitter):
    """Commits without a record, as the holder of a lock does."""

    def record(self) -> CommitRecord | None:
        return None


@dataclass
class Bench:
    """A root, its committer, the events of all managers made for it."""

    root: Path
    committer: RecordCommitter = field(default_factory=RecordCommitter)
    events: list[Event] = field(default_factory=list)

    def manager(
        self, *, group=None, storage=None, job_id="job", generation=None, tier=None, clock=None, others_may_hold=False,
        **settings: Any,
    ) -> CheckpointManager:  # fmt: skip
        settings = {"save_path": str(self.root), **DEFAULTS, **settings}
        enable = settings.get("enable_save", True)
        return CheckpointManager(
            CheckpointSettings(**settings),
            identity=claim(settings["save_path"], job_id=job_id) if enable else None,
            group=group or AloneGroup(),
            committer=self.committer,
            emit=self.events.append,
            storage=storage or PosixStorage(),
            clock=clock or ManualClock(),
            generation=generation,
            tier=tier,
            others_may_hold=others_may_hold,
        )

    def going_on(self, **settings: Any) -> CheckpointManager:
        """A manager that has restored, as every start does: it knows what led to its state."""
        manager = self.manager(**settings)
        manager.restore(make_run().tracked)
        self.events.clear()
        return manager

    def kinds(self) -> list[str]:
        """Kinds of the events so far."""
        return [event.kind for event in self.events]

    def reasons(self, kind: str) -> str:
        """Reasons of the events of a kind, joined."""
        return " | ".join(event.reason for event in self.events if event.kind == kind)

    def directory(self, iteration: int) -> Path:
        return self.root / f"iteration_{iteration:08d}"


def meta(iteration: int, *, generation: int = 1, **others: Any) -> SaveMeta:
    """What a save of a run with 8 samples a step says."""
    values: dict[str, Any] = {
        "iteration": iteration,
        "consumed_samples": iteration * 8,
        "global_batch_size": 8,
        "generation": generation,
        "run_digest": 1234567,
        "seed": 7,
        "order_version": 1,
        "settings": {"training": {"seed": 7}},
        "global_step": iteration,
    }
    return SaveMeta(**(values | others))
