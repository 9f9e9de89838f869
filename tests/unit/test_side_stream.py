"""The order in which a GPU is asked for copies, by a stand-in that notes it. What a GPU does then is not seen here."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from elastic.checkpoint.mapping import Mapping
from elastic.distributed.side_stream import SideStream


class Noted:
    """A stand-in for torch.cuda. `said`: what it was asked for, in order."""

    def __init__(self, *, refuses: int = 0) -> None:
        self.said: list[Any] = []
        self.refuses = refuses
        self.pinned: list[tuple[int, bool]] = []

    def Stream(self) -> Any:
        return Stream("side", self.said)

    def Event(self, *, blocking: bool) -> Any:
        assert blocking
        return Event(self.said)

    def current_stream(self) -> Any:
        return Stream("training", self.said)

    @contextmanager
    def stream(self, stream: Any):
        self.said.append(("begin", stream.name))
        yield
        self.said.append(("end", stream.name))

    def cudart(self) -> Any:
        return self

    def cudaHostRegister(self, address: int, size_bytes: int, flags: int) -> int:
        self.said.append(("pin", address, size_bytes, flags))
        return self.refuses

    def cudaHostUnregister(self, address: int) -> int:
        self.pinned.append((address, mapped(address)))
        return 0


class Stream:
    def __init__(self, name: str, said: list[Any]) -> None:
        self.name, self.said = name, said

    def wait_stream(self, other: Any) -> None:
        self.said.append((self.name, "waits for all of", other.name))

    def wait_event(self, event: Any) -> None:
        self.said.append((self.name, "waits for", event.at))


class Event:
    def __init__(self, said: list[Any]) -> None:
        self.said, self.at = said, ""

    def record(self, stream: Any) -> None:
        self.at = f"the copies on {stream.name}"

    def synchronize(self) -> None:
        self.said.append(("host waits for", self.at))


class Far:
    """A tensor on the device: only what a copy needs."""

    def __init__(self, value: torch.Tensor, said: list[Any]) -> None:
        self.value, self.said = value, said

    def record_stream(self, stream: Any) -> None:
        self.said.append(("kept for", stream.name))


class Target:
    def __init__(self, said: list[Any]) -> None:
        self.said = said

    def copy_(self, source: Any, *, non_blocking: bool = False) -> None:
        self.said.append(("copy", non_blocking))


def mapped(address: int) -> bool:
    ranges = (line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
    return any(int(begin, 16) <= address < int(end, 16) for begin, end in ranges)


def device(**how: int) -> tuple[Noted, SideStream]:
    cuda = Noted(**how)

    def launch() -> None:
        cuda.said.append("launch")
        raise RuntimeError("CUDA error: out of memory")  # as torch does once after a refusal

    return cuda, SideStream(cuda, on_device=lambda tensor: isinstance(tensor, Far), launch=launch)


def test_copies_follow_on_the_training_and_the_training_on_them():
    cuda, stream = device()
    far, target = Far(torch.ones(2), cuda.said), Target(cuda.said)
    under_way = stream.begin([target, target], [far, far])
    assert cuda.said == [
        ("side", "waits for all of", "training"),
        ("begin", "side"),
        ("copy", True),
        ("kept for", "side"),
        ("copy", True),
        ("kept for", "side"),
        ("end", "side"),
        ("training", "waits for", "the copies on side"),
    ]
    under_way.wait()
    assert cuda.said[-1] == ("host waits for", "the copies on side")


def test_what_is_on_the_host_is_there_at_once():
    cuda, stream = device()
    target = torch.zeros(3)
    assert stream.begin([target], [torch.ones(3)]) is None
    assert target.tolist() == [1.0, 1.0, 1.0]
    assert cuda.said == []


def test_memory_is_pinned_until_right_before_it_is_unmapped():
    cuda, stream = device()
    memory = Mapping(None, 3 * 4096)
    address = torch.frombuffer(memory.data, dtype=torch.uint8).data_ptr()
    stream.lend(memory.data)
    assert cuda.said == [("pin", address, 3 * 4096, 0)]
    assert cuda.pinned == []
    del memory
    gc.collect()
    assert cuda.pinned == [(address, True)], "unpinned once, while it was there"


def test_where_pinning_is_refused_it_is_told_and_never_undone(caplog):
    cuda, stream = device(refuses=2)
    memory = Mapping(None, 4096)
    stream.lend(memory.data)
    assert "could not be pinned (CUDA error 2)" in caplog.text
    assert cuda.said[-1] == "launch", "CUDA's last error is taken away"
    del memory
    gc.collect()
    assert cuda.pinned == []
