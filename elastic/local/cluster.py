"""A cluster on this machine: one etcd, named nodes, one run. A context manager that leaves nothing running."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from elastic.errors import ElasticError
from elastic.events import Record, StepCommitted, WorldFormed
from elastic.local.follow import Follower
from elastic.local.node import Node, NodeSpec


class NodeEnded(ElasticError):
    """A node ended while the others still waited for something that needs it."""


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """What all nodes share. `environ` holds settings in their ELASTIC__SECTION__FIELD form."""

    directory: Path
    etcd_endpoint: str
    environ: Mapping[str, str] = field(default_factory=dict)
    options: Sequence[str] = ()
    arguments: Sequence[str] = ()
    script: str = "elastic/worker.py"
    nnodes: str = "1:4"


class Cluster:
    """Nodes of one run. Waiting always follows the run's own events."""

    def __init__(self, spec: ClusterSpec, *, on_record: Callable[[Record], None] | None = None) -> None:
        self.save_path = spec.directory / "checkpoint"
        self.nodes: dict[str, Node] = {}
        self.follower = Follower(self.save_path / "events", on_record=on_record)
        self._spec = spec

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for node in self.nodes.values():
            node.end()
        self.follower.__exit__(kind, error, traceback)

    def start(self, name: str, *, prefix: Sequence[str] = (), options: Sequence[str] = (), **environ: str) -> Node:
        """Start a node; its output goes to `<directory>/<name>.log`. `prefix`: see NodeSpec; `options`: after all's."""
        spec = self._spec
        settings = {
            "ETCD_ENDPOINTS": spec.etcd_endpoint,
            "ELASTIC__CHECKPOINT__SAVE_PATH": str(self.save_path),
            **spec.environ,
            **environ,
        }
        node = Node(
            NodeSpec(
                name=name,
                environ=settings,
                log=spec.directory / f"{name}.log",
                options=(*spec.options, *options),
                arguments=spec.arguments,
                script=spec.script,
                nnodes=spec.nnodes,
                prefix=prefix,
            )
        )
        self.nodes[name] = node
        return node

    def wait_step(
        self, step: int, *, world_size: int | None = None, limit_s: float = 120.0, since: int = 0, after: int = 0
    ) -> Record:
        """Wait until a step of at least this number is committed, at this world size, in a generation after `after`."""

        def test(record: Record) -> bool:
            event = record.event
            return (
                isinstance(event, StepCommitted)
                and event.iteration >= step
                and (world_size is None or event.world_size == world_size)
                and record.generation > after
            )

        at_world = "" if world_size is None else f" at world size {world_size}"
        return self.wait(test, what=f"step {step}{at_world}", limit_s=limit_s, since=since)

    def wait_world(self, world_size: int, *, limit_s: float = 60.0, since: int = 0) -> Record:
        """Wait until a world of this size is formed."""
        return self.wait(
            lambda r: isinstance(r.event, WorldFormed) and r.event.world_size == world_size,
            what=f"a world of {world_size}",
            limit_s=limit_s,
            since=since,
        )

    def wait(self, test: Callable[[Record], bool], *, what: str, limit_s: float, since: int = 0) -> Record:
        """Wait for an event; gives up early, with the log's end, when no node is left to bring it about."""
        return self.follower.wait_for(test, what=what, limit_s=limit_s, since=since, alive=self._some_node_runs)

    def wait_exit(self, name: str, *, limit_s: float = 60.0) -> int:
        """Wait for a node's end and return its exit code."""
        return self.nodes[name].wait(limit_s=limit_s)

    def now(self) -> int:
        """How many records were seen: what happens from here on is told by `since=`."""
        self.follower.read()
        return len(self.follower.records)

    def _some_node_runs(self) -> None:
        if any(node.process.poll() is None for node in self.nodes.values()):
            return
        tails = "\n".join(f"--- {n.name}\n{n.log.read_text()[-2000:]}" for n in self.nodes.values())
        raise NodeEnded(f"all nodes have ended; the ends of their logs:\n{tails}")
