"""An object store in memory, with one fault at a chosen request; and a bench over it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from elastic.checkpoint.manager import CheckpointManager
from elastic.checkpoint.object_storage import ObjectStorage
from elastic.checkpoint.objects import Listing, PatientStore
from elastic.checkpoint.root import claim
from elastic.checkpoint.seams import AloneGroup
from elastic.clock import ManualClock
from elastic.events import Event
from tests.harness.checkpoints import CheckpointSettings, RecordCommitter
from tests.harness.faulty_storage import Died


class Fault(enum.Enum):
    FAIL = "refused, and not done"
    LOST = "done, but the answer is lost"
    DIE = "the process is gone before it"
    DIE_AFTER = "the process is gone after it"
    CUT = "half of what was asked for comes"


class MemoryStore:
    """What is stored outlives the client; `at` counts requests of this client."""

    def __init__(self, objects: dict[str, bytes], *, at: int | None = None, times: int = 1, fault: Fault = Fault.FAIL):
        self.objects = objects
        self.requests: list[str] = []
        self.fired = 0
        self._at, self._times, self._fault = at, times, fault
        self._dead = False

    def get(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        def read():
            if key not in self.objects:
                raise FileNotFoundError(key)
            return self.objects[key][start:stop]

        return self._do("get", key, read, cut=lambda data: data[: len(data) // 2])

    def put(self, key: str, data: bytes) -> None:
        self._do("put", key, lambda: self.objects.__setitem__(key, bytes(data)))

    def put_new(self, key: str, data: bytes) -> bool:
        def make():
            if key in self.objects:
                return False
            self.objects[key] = bytes(data)
            return True

        return self._do("put_new", key, make)

    def size_bytes(self, key: str) -> int | None:
        return self._do("size", key, lambda: len(self.objects[key]) if key in self.objects else None)

    def list(self, prefix: str) -> Listing:
        def look():
            inside = [key.removeprefix(prefix + "/") for key in self.objects if key.startswith(prefix + "/")]
            sizes = {name: len(self.objects[f"{prefix}/{name}"]) for name in inside if "/" not in name}
            return Listing(sizes_bytes=sizes, folders=tuple({name.split("/")[0] for name in inside if "/" in name}))

        return self._do("list", prefix, look)

    def keys(self, prefix: str) -> Sequence[str]:
        return self._do("keys", prefix, lambda: sorted(key for key in self.objects if key.startswith(prefix + "/")))

    def delete(self, keys: Sequence[str]) -> None:
        self._do("delete", keys[0], lambda: [self.objects.pop(key, None) for key in keys])

    def _do(self, verb, key, act, cut=lambda answer: answer):
        if self._dead:
            raise Died("the process is gone")
        number = len(self.requests)
        self.requests.append(f"{verb} {key.rpartition('/')[2]}")
        if self._at is None or not self._at <= number < self._at + self._times:
            return act()
        self.fired += 1
        if self._fault is Fault.FAIL:
            raise OSError("503 Slow Down")
        if self._fault is Fault.CUT:
            return cut(act())
        if self._fault in (Fault.LOST, Fault.DIE_AFTER):
            act()
        if self._fault is Fault.LOST:
            raise OSError("the connection was closed before an answer came")
        self._dead = True
        raise Died(f"{verb} {key}")


ROOT = "mem://bucket/runs/one"


@dataclass
class ObjectBench:
    """A root in memory, its committer and events."""

    objects: dict[str, bytes] = field(default_factory=dict)
    committer: RecordCommitter = field(default_factory=RecordCommitter)
    events: list[Event] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def storage(self, store: MemoryStore | None = None) -> ObjectStorage:
        return ObjectStorage(
            PatientStore(store or MemoryStore(self.objects), clock=ManualClock(), tell=self.told.append)
        )

    def manager(self, *, store: MemoryStore | None = None, group: Any = None, generation: int = 1, **settings: Any):
        settings = {"save_path": ROOT} | settings
        return CheckpointManager(
            CheckpointSettings(**settings),
            identity=claim(settings["save_path"], job_id="job", storage=self.storage()),
            group=group or AloneGroup(),
            committer=self.committer,
            emit=self.events.append,
            storage=self.storage(store),
            clock=ManualClock(),
            generation=generation,
        )

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    def reasons(self, kind: str) -> str:
        return " | ".join(event.reason for event in self.events if event.kind == kind)

    def content(self, iteration: int) -> dict[str, str]:
        """Name -> key of the files of an iteration."""
        prefix = self.objects[f"{ROOT}/iteration_{iteration:08d}.dir"].decode()
        keys = [key for key in self.objects if key.startswith(f"{ROOT}/.data/{prefix}/")]
        return {key.rpartition("/")[2]: key for key in keys}
