"""Starting: a worker for each of the node's places. One that stays is given its place, others are started anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.distributed.elastic.agent.server.api import Worker, WorkerSpec

from elastic.launch.processes import Process, kill_group
from elastic.link import Place
from elastic.rendezvous.membership import Membership
from elastic.world import PLACE_TO_COME


class Kept:
    """A worker that stays, as torch's `SubprocessHandler` of one that was just started."""

    def __init__(self, process: Process) -> None:
        self.proc = process

    def close(self, death_sig: int | None = None) -> None:
        """End it."""
        kill_group(self.proc.pid)


class Starter:
    """Stands in the place of torch's own function that starts one worker."""

    def __init__(
        self, start: Callable[..., Any], *, place: Callable[[int, Place], bool], extra: Callable[[], Mapping[str, str]]
    ) -> None:
        """Args:
        start: how one is started anew.
        place: hands a place to the worker with a pid; False where that is not to be reached.
        extra: variables of the agent's own that changed with the generation.
        """
        self._start, self._place, self._extra = start, place, extra
        self.kept: dict[int, Process] = {}
        """By local rank: the workers that stay. Taken out as they are given their places."""
        self.stayed: set[int] = set()
        """Local ranks whose workers are those of the generation before."""
        self._ahead: set[int] = set()

    def ahead(self, entrypoint: str, args: tuple[Any, ...], *, local_rank: int, slots: int) -> Process:
        """Start a worker that has no place yet; it is kept for its first one."""
        env = {"LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": str(slots), PLACE_TO_COME: "1"}
        process: Process = self._start(entrypoint, args, env, "", "", local_rank, None).proc
        self.kept[local_rank] = process
        self._ahead.add(local_rank)
        return process

    def __call__(
        self, entrypoint: str, args: tuple[Any, ...], env: dict[str, str], stdout: str, stderr: str,
        local_rank_id: int, numa_options: Any = None,
    ) -> Any:  # fmt: skip
        """Called by torch for each place of the node."""
        self.stayed.discard(local_rank_id)
        process = self.kept.pop(local_rank_id, None)
        ahead = local_rank_id in self._ahead
        self._ahead.discard(local_rank_id)
        if process is not None:
            environ = {**env, **self._extra(), **({PLACE_TO_COME: ""} if ahead else {})}
            if self._place(process.pid, Place(environ=environ, stdout=stdout or "", stderr=stderr or "")):
                if not ahead:
                    self.stayed.add(local_rank_id)
                return Kept(process)
            kill_group(process.pid)
            process.wait()
        return self._start(entrypoint, args, env, stdout, stderr, local_rank_id, numa_options)

    def drop(self) -> None:
        """Kill the workers that stay: there is no place for them."""
        for process in self.kept.values():
            kill_group(process.pid)
            process.wait()
        self.kept.clear()


def workers_of(membership: Membership, spec: WorkerSpec) -> list[Worker]:
    """The node's places in the agreed world, as torch's agent keeps them."""
    size = membership.world.world_size
    base = membership.seat.base_rank
    return [
        Worker(
            local_rank=local_rank,
            global_rank=base + local_rank,
            role_rank=base + local_rank,
            world_size=size,
            role_world_size=size,
        )
        for local_rank in range(spec.local_world_size)
    ]
