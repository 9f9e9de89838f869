"""The private details of torch that the launch rests on, in one place: checked before use, tested against the pin.

`torch.distributed.launcher.api.launch_agent` asks the rendezvous registry for a handler first and looks up the name
`LocalElasticAgent` in its own module only then: whatever stands there by that time becomes the agent. And each start
of workers installs the signal handler that stands in `torch.distributed.elastic.multiprocessing.api` by then, and asks
what stands there as `get_subprocess_handler` for each worker; torch's own opens the log files, puts the variables
together, and leaves only the start of the process to its method `_popen`.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import api as processes
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
from torch.distributed.launcher import api as launcher

from elastic.errors import ElasticError


class TorchChanged(ElasticError):
    """This torch is built in another way than the one that the launch was written for."""


AGENT_NAME = "LocalElasticAgent"
SIGNAL_HANDLER_NAME = "_terminate_process_handler"
STARTER_NAME = "get_subprocess_handler"
_USED_OF_AGENT = ("_invoke_run", "_start_workers", "_shutdown", "_worker_group", "_pcontext")

_USED_OF_HANDLER = (
    *("self._popen(args_str, env_vars)", "self._stdout = open(", "self._stderr = open("),
    *("stdout=self._stdout", "stderr=self._stderr", "self.local_rank_id = "),
)


def put_agent_in_place(build: Callable[..., Any]) -> None:
    """Have torchrun build its agent with `build`, called as the class is.

    Raises:
        TorchChanged: the details do not hold; going on would silently run the stock agent.
    """
    missing = missing_details()
    if missing:
        raise TorchChanged(
            f"this torch differs from the ones that we know: {', '.join(missing)}. Use torch 2.13, or report this"
        )
    setattr(launcher, AGENT_NAME, build)


def take_signals(handle: Callable[[int, FrameType | None], None]) -> None:
    """Have torch install this handler, not its own, whenever it starts workers."""
    setattr(processes, SIGNAL_HANDLER_NAME, handle)


Start = Callable[[Sequence[str], Mapping[str, str], Sequence[int]], Any]
"""Of command, variables and descriptors for input, output and error: a process, or None where torch shall start it."""


Lend = Callable[[int], "tuple[int, int] | None"]
"""Of a local rank: descriptors for a worker's output and error, to be closed here; None: it has the agent's own."""


def handler_with(start: Start, *, lend: Lend = lambda local_rank: None) -> Callable[..., Any]:
    """Torch's own way to start a worker, but for the process itself, which `start` makes, and what it prints to."""

    class Handler(SubprocessHandler):
        def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> Any:
            own = self._stdout, self._stderr
            with contextlib.ExitStack() as stack:
                lent = [stack.enter_context(open(end, "w")) for end in lend(self.local_rank_id) or ()]
                if lent:  # files that torchrun was asked for come first
                    self._stdout, self._stderr = (mine or pipe for mine, pipe in zip(own, lent, strict=True))
                files = [0, *(file.fileno() if file else n for n, file in ((1, self._stdout), (2, self._stderr)))]
                try:
                    started = start(args, env, files)
                    return super()._popen(args, env) if started is None else started
                finally:
                    self._stdout, self._stderr = own

    return Handler


def take_starts(start: Callable[..., Any]) -> None:
    """Have torch start each worker with `start`, called as its own function is (see elastic.launch.starting)."""
    setattr(processes, STARTER_NAME, start)


def missing_details() -> tuple[str, ...]:
    """What of the details does not hold in the torch that is installed; empty when all is well."""
    missing = []
    source = inspect.getsource(launcher.launch_agent)
    handler_at, agent_at = source.find("get_rendezvous_handler("), source.find(f"{AGENT_NAME}(")
    if not 0 <= handler_at < agent_at:
        missing.append("launch_agent does not build the handler before the agent")
    agent = inspect.getsource(LocalElasticAgent) + inspect.getsource(LocalElasticAgent.__mro__[1])
    missing += [f"{AGENT_NAME} has no {name}" for name in _USED_OF_AGENT if name not in agent]
    if f"signal.signal(sig, {SIGNAL_HANDLER_NAME})" not in inspect.getsource(processes.PContext.start):
        missing.append(f"PContext.start does not install {SIGNAL_HANDLER_NAME}")
    starts = inspect.getsource(processes.SubprocessContext)
    if "subprocess_handlers" not in starts:
        missing.append("SubprocessContext has no subprocess_handlers")
    if f"local_rank: {STARTER_NAME}(" not in starts:
        missing.append(f"SubprocessContext does not ask {STARTER_NAME} for workers")
    handler = inspect.getsource(SubprocessHandler)
    missing += [f"SubprocessHandler has no {text}" for text in _USED_OF_HANDLER if text not in handler]
    return tuple(missing)
