"""Nodes with private directories, as threads: rank r saves under `<root>/<place of r>`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastic.checkpoint.kinship import one_identity
from elastic.checkpoint.manager import CheckpointManager
from elastic.checkpoint.places import find_places
from elastic.checkpoint.root import claim
from elastic.checkpoint.storage import PosixStorage, Storage
from elastic.clock import ManualClock
from elastic.config.choices import PathScope
from elastic.events import Event
from tests.harness.checkpoints import CheckpointSettings, RecordCommitter, Run, make_run, meta
from tests.harness.ranks import ThreadGroup, run_tensor_ranks


@dataclass
class Apart:
    """A record, the events of all ranks, and the directories of the nodes."""

    root: Path
    committer: RecordCommitter = field(default_factory=RecordCommitter)
    events: list[Event] = field(default_factory=list)
    storages: dict[int, Storage] = field(default_factory=dict)
    """By rank, where it is not a plain one."""

    def path(self, place: int) -> Path:
        return self.root / str(place)

    def iteration(self, place: int, number: int) -> Path:
        return self.path(place) / f"iteration_{number:08d}"

    def lose(self, place: int) -> None:
        shutil.rmtree(self.path(place))

    def manager(self, group: ThreadGroup, places: Sequence[int], *, generation: int, **settings: Any):
        root = str(self.path(places[group.rank]))
        storage = self.storages.get(group.rank, PosixStorage())
        identity = claim(root, job_id="job")
        found = find_places(
            root, scope=PathScope.AUTO, node="", group=group, storage=PosixStorage(), clock=ManualClock(),
            nonce=lambda: f"{id(group):x}",
        )  # fmt: skip
        if found is not None:
            identity = one_identity(
                root, identity, places=found, group=group, committer=self.committer, storage=PosixStorage()
            )
        return CheckpointManager(
            CheckpointSettings(save_path=root, **settings),
            identity=identity,
            group=group,
            committer=self.committer,
            emit=self.events.append,
            storage=storage,
            clock=ManualClock(),
            generation=generation,
            places=found,
        )

    def session(self, places: Sequence[int], work: Callable[[CheckpointManager, Run, int], Any], *, generation: int,
                **settings: Any) -> list[Any]:  # fmt: skip
        """One start of a world: rank r in `places[r]`. Every rank restores, then does `work(manager, run, rank)`."""

        def one(group: ThreadGroup) -> Any:
            manager = self.manager(group, places, generation=generation, **settings)
            run = make_run(seed=1 + group.rank if generation > 1 else 0)
            run.steps = manager.restore(run.tracked).iteration
            return work(manager, run, group.rank)

        return run_tensor_ranks(len(places), one)

    def train(self, places: Sequence[int], *saves: int, generation: int, **settings: Any) -> list[Run]:
        """A start that trains up to and saves these iterations."""

        def work(manager: CheckpointManager, run: Run, rank: int) -> Run:
            for iteration in saves:
                run.step(iteration - run.steps)
                manager.save(run.tracked, meta(iteration, generation=generation))
            return run

        return self.session(places, work, generation=generation, **settings)

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    def notices(self) -> str:
        return " | ".join(event.text for event in self.events if event.kind == "notice")

    def reasons(self, kind: str) -> str:
        return " | ".join(event.reason for event in self.events if event.kind == kind)
