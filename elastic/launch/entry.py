"""From torchrun's request for a rendezvous handler to a whole agent of ours.

torchrun asks the registered creator for a handler before it builds its agent, and looks the agent's class up in
`torch.distributed.launcher.api` only afterwards. That is where ours takes its place.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.elastic.rendezvous.api import RendezvousHandler, RendezvousParameters

from elastic.clock import SYSTEM_CLOCK
from elastic.config.choices import Numerics, PathScope
from elastic.config.load import resolve
from elastic.config.model import Settings
from elastic.errors import ElasticError, UsageError
from elastic.launch.agent import Agent
from elastic.launch.ready import ReadyWorkers
from elastic.launch.stage import Stage
from elastic.launch.tenure import launch_in
from elastic.launch.torch_details import put_agent_in_place
from elastic.launch.variables import threads_for
from elastic.plan.batch_mode import BatchMode
from elastic.plan.tree import sharings, told
from elastic.world import NODE

logger = logging.getLogger(__name__)

_MOST_TOLD = 64
"""World sizes whose share of the batch is printed at the start."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """What torchrun was asked to start."""

    script: str
    arguments: tuple[str, ...]
    slots: int = 1
    """Workers of a node."""
    python: bool = True
    """Whether workers are plain Pythons, not other programs nor below another one (numactl)."""

    @property
    def ours(self) -> bool:
        """Whether the script is elastic/worker.py, whose arguments are all ours."""
        worker = Path(__file__).resolve().parents[1] / "worker.py"
        return self.script == "elastic.worker" or Path(self.script).resolve() == worker


def torchrun_command(argv: Sequence[str]) -> Command:
    """Find the script and its arguments in torchrun's command line; empty where torchrun was not the program."""
    if Path(argv[0]).name not in {"torchrun", "run.py"}:
        return Command(script="", arguments=())
    from torch.distributed.run import determine_local_world_size, get_args_parser

    parsed = get_args_parser().parse_args(argv[1:])
    return Command(
        script=parsed.training_script,
        arguments=tuple(parsed.training_script_args),
        slots=determine_local_world_size(parsed.nproc_per_node),
        python=not parsed.no_python and parsed.numa_binding is None,
    )


def create(parameters: RendezvousParameters) -> RendezvousHandler:
    """Build the handler and put our agent in the place of torchrun's.

    Raises:
        SystemExit: with a documented exit code, after one clear message.
    """
    gc.freeze()  # torch's hundred thousand objects stay for good, and need not be gone through with each pass
    _configure_logging()
    try:
        return _create(parameters, argv=sys.argv, environ=os.environ)
    except ElasticError as error:
        print(error, file=sys.stderr, flush=True)  # noqa: T201
        raise SystemExit(int(error.exit_code)) from error


def _create(parameters: RendezvousParameters, *, argv: Sequence[str], environ: Mapping[str, str]) -> RendezvousHandler:
    command = torchrun_command(argv)
    settings = resolve(command.arguments, environ=environ, strict=command.ours).settings
    _check_split(settings, min_workers=parameters.min_nodes * command.slots)
    if settings.checkpoint.save_path_scope is PathScope.PRIVATE and parameters.run_id in ("", "none"):
        raise UsageError(
            "checkpoint.save_path_scope is private, so that nothing shows which nodes belong together: give all of "
            "them the same --rdzv-id"
        )
    with contextlib.ExitStack() as undo:
        ready = _ready_workers(settings, command, environ=environ)
        if ready is not None:
            ready.start()
            undo.callback(ready.stop)
        launch = launch_in(settings, run_id=parameters.run_id, clock=SYSTEM_CLOCK)
        stage = Stage(
            parameters,
            settings=settings,
            launch=launch,
            node=node_of(environ),
            environ=environ,
            clock=SYSTEM_CLOCK,
        )
        undo.pop_all()
    if ready is not None:
        stage.use(ready, ours=command.ours)
    logger.info("job %s, etcd at %s", launch.job_id, stage.handler.endpoint)
    logger.info("%s", _sharing(settings, command, nodes=range(parameters.min_nodes, parameters.max_nodes + 1)))
    put_agent_in_place(functools.partial(Agent, stage=stage))
    return stage.handler


def _ready_workers(settings: Settings, command: Command, *, environ: Mapping[str, str]) -> ReadyWorkers | None:
    """What forks this node's workers; None where they are to be started one by one."""
    if not (settings.launch.ready_workers and command.script and command.python):
        return None
    return ReadyWorkers(
        module=settings.job.target.partition(":")[0] if command.ours else "",
        command_bytes=len("\0".join([sys.executable, "-u", "-m", command.script, *command.arguments]).encode()),
        environ={**environ, **threads_for(settings.training.threads_per_worker, environ=environ)},
        clock=SYSTEM_CLOCK,
    )


def _check_split(settings: Settings, *, min_workers: int) -> None:
    batch = settings.training.global_batch_size
    if batch < min_workers:
        raise UsageError(
            f"a global batch of {batch} samples cannot be split over the {min_workers} workers that --nnodes asks for "
            f"at least; raise training.global_batch_size to {min_workers} or more, or lower the minimum"
        )


def node_of(environ: Mapping[str, str]) -> str:
    """This node's name.

    Raises:
        UsageError: it cannot be part of a file's name, as those of the node's events and logs are made of it.
    """
    name = environ.get(NODE) or socket.gethostname()
    if not name.isprintable() or "/" in name or name.startswith("."):
        raise UsageError(f"{NODE} is {name!r}: a node's name has no slash, no control character and no dot in front")
    return name


def _sharing(settings: Settings, command: Command, *, nodes: range) -> str:
    """What each number of nodes makes of the global batch."""
    training = settings.training
    if training.batch is BatchMode.PER_RANK:
        each = training.rank_batch_size or training.global_batch_size
        return f"each worker takes {each} samples a step, so that nobody waits and the batch grows with the workers"
    slots = -(-training.global_batch_size // training.micro_batch_size)
    sizes = [count * command.slots for count in nodes[:_MOST_TOLD]]
    line = told(sharings(slots, world_sizes=sizes), slots=slots, exact=training.numerics is Numerics.EXACT)
    return line if len(nodes) <= _MOST_TOLD else f"{line}; …"


def _configure_logging() -> None:
    """The product's lines on stderr, without changing the root logger that torch configured."""
    ours = logging.getLogger("elastic")
    if not ours.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
        ours.addHandler(handler)
        ours.setLevel(logging.INFO)
        ours.propagate = False
