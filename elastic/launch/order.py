"""Order: what an agent asks its zygote for, and how both say it. Light, pure, and the only thing that the two share."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

GO = b"g"
"""What a forked worker waits for. Without it, at the end of the pipe, it ends: nobody knows it."""
ROOM = "ELASTIC_ZYGOTE_ROOM"
"""A variable of the zygote that only takes up room, which its forks' own variables need (see proc_title)."""


class Kind(enum.StrEnum):
    """How Python is told what to run."""

    SCRIPT = "script"
    MODULE = "module"


@dataclass(frozen=True, kw_only=True)
class Program:
    """What runs as `__main__`."""

    kind: Kind
    name: str
    """A file, or a module's dotted name."""
    arguments: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Cold:
    """A worker that must be started as a new Python, and why."""

    reason: str


def program_of(command: Sequence[str], *, python: str) -> Program | Cold:
    """What a command of torchrun's runs, where a fork of that Python can stand for it."""
    if tuple(command[:2]) != (python, "-u") or len(command) < 3:
        return Cold(reason=f"workers are not started as `{python} -u …` but as {' '.join(command[:3])!r}")
    if command[2] == "-m":
        if len(command) < 4:
            return Cold(reason="torchrun names no module after -m")
        return Program(kind=Kind.MODULE, name=command[3], arguments=tuple(command[4:]))
    script = command[2]
    if not Path(script).is_file() or script.endswith((".pyc", ".zip")):
        return Cold(reason=f"{script} is no file of source code")
    return Program(kind=Kind.SCRIPT, name=script, arguments=tuple(command[3:]))


@dataclass(frozen=True, kw_only=True)
class Order:
    """One worker to fork. Its standard files and the pipe that it waits on travel as descriptors beside this."""

    command: tuple[str, ...]
    """As torchrun would execute it."""
    program: Program
    environ: Mapping[str, str]
    cwd: str

    def encode(self) -> bytes:
        """As bytes; what the system gave us as no UTF-8 comes out as it was."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Order:
        """What `encode` made bytes of."""
        found = json.loads(data)
        program = found["program"]
        return cls(
            command=tuple(found["command"]),
            program=Program(kind=Kind(program["kind"]), name=program["name"], arguments=tuple(program["arguments"])),
            environ=found["environ"],
            cwd=found["cwd"],
        )


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The zygote's word. `pid`: of the worker, 0 in the first word, that it is ready; `refused`: why it is not."""

    pid: int = 0
    refused: str = ""

    def encode(self) -> bytes:
        """As bytes."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Answer:
        """What `encode` made bytes of."""
        return cls(**json.loads(data))


LONGEST_REASON = 2000
"""A reason is cut to so many characters."""
LONGEST_ANSWER_BYTES = 65536
"""More than any answer is long."""
