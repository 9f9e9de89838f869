"""Zygote: a process that has imported all that a worker needs, and forks workers from itself in milliseconds.

The agent starts it as a Python of its own, never by forking itself: gRPC's threads would not be in the fork. It has
one thread, no GPU and no connection, and sees to it that the job's module leaves it so. A worker becomes the agent's
own child: the zygote forks a process that forks the worker and ends, and the agent adopts the orphan. So a zygote
that dies takes no worker along.

In the fork `main` returns to its very end and runs the worker's program there: nothing of the zygote is below it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

if __name__ == "__main__":
    # As a script; its own directory would be first on the path. A worker's program sets the first entry for itself.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from elastic.launch import newborn, proc_title, program
from elastic.launch.footprint import look, obstacle
from elastic.launch.newborn import Files, Prepared
from elastic.launch.order import LONGEST_REASON, Answer
from elastic.lifetime import die_with_parent

PRELOADED = (
    "numpy",
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torchdata.stateful_dataloader",
    "safetensors.torch",
    "elastic.launch.worker_main",
)
"""What every worker imports, at once or with its first optimizer."""
FOR_OTHERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""What batch systems send to all processes, to be acted upon by the agent or the workers."""
COMM = "elastic-zygote"
"""What ps calls it."""


def main(argv: list[str]) -> None:
    """The process: `zygote.py SOCKET MODULE ROOM`, with the descriptor of a socket to the agent."""
    control = socket.socket(fileno=int(argv[1]))
    die_with_parent()
    dispositions = {number: signal.signal(number, _leave) for number in FOR_OTHERS}
    Path("/proc/self/comm").write_text(COMM)
    proc_title.show([os.fsencode(word) for word in (sys.executable, "-u", *argv[:3])])
    prepared = prepare(argv[2])
    with contextlib.suppress(BrokenPipeError):
        control.send(Answer(refused=prepared.refused).encode())
    files = None if prepared.refused else serve(control)
    if files is None:
        os._exit(0)  # what the job's module registered for its exit is for workers
    for number, before in dispositions.items():
        if signal.getsignal(number) is _leave:  # else the job's module wants it otherwise
            signal.signal(number, before)
    program.run(newborn.become(files, prepared))


def _leave(number: int, frame: FrameType | None) -> None:
    """Do nothing about a signal. Not SIG_IGN, which a job's module might set itself."""


def prepare(module: str) -> Prepared:
    """Import everything, the job's module too (empty: it is not known), and see whether a fork could have it all."""
    if len(os.listdir("/proc/self/task")) > 1:
        return Prepared(refused="this Python starts threads of its own: a debugger, a profiler, sitecustomize?")
    with captured() as said:
        with uncollected():
            for name in PRELOADED:
                importlib.import_module(name)
        import torch

        from elastic.launch.chance import Chance, settle

        threads = torch.get_num_threads()
        # A second thread of OpenMP's, once used, would be waited for in vain in a fork.
        torch.set_num_threads(1)
        keys = settle()
        before = look()
        refused = import_job(module) if module else ""
        refused = refused or obstacle(before, look(cuda=bool(torch.cuda.is_initialized())))  # type: ignore[no-untyped-call]
        if refused:
            return Prepared(refused=f"{module}: {refused}")
        gc.collect()
        gc.freeze()
        return Prepared(threads=threads, chance=Chance.since(keys), said=said())


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """The garbage collector rests meanwhile: of half a million objects that stay it would look at each several times,
    for a fifth of the time that their imports take. From then on it passes them by.

    It writes to all that it looks at, too, and a page written to is copied for each worker.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect()
        gc.freeze()
        if collects:
            gc.enable()


def import_job(module: str) -> str:
    """Import the job's module as a worker would. What went wrong, in short: a worker itself will say it in full."""
    path = list(sys.path)
    sys.path.insert(1, os.getcwd())
    try:
        importlib.import_module(module)
    except BaseException as error:  # noqa: BLE001 - whatever it is, a worker meets it too
        return f"it cannot be imported ({type(error).__name__}: {error})"[:LONGEST_REASON]
    finally:
        sys.path[:] = path
    return ""


def serve(control: socket.socket) -> Files | None:
    """Fork a worker for each order, until the agent hangs up (None). Returns in each worker, with what it was given."""
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 64, Files.COUNT, socket.MSG_CMSG_CLOEXEC)
        if len(descriptors) < Files.COUNT:
            return None
        files = Files.of(descriptors)
        answer = fork_worker()
        if answer is None:
            control.close()
            return files
        files.close()
        with contextlib.suppress(BrokenPipeError):
            control.send(answer.encode())


def fork_worker() -> Answer | None:
    """Fork a process that forks the worker. None in the worker; in the zygote, the answer for the agent."""
    born_read, born_write = os.pipe()
    try:
        middle = os.fork()
        if middle == 0:
            os.close(born_read)
            _fork_and_end(born_write)
            return None
    except OSError as error:
        os.close(born_read)
        return Answer(refused=f"the zygote could not fork: {error}")
    finally:
        os.close(born_write)
    with open(born_read, "rb") as born:
        word = born.read().decode()
    # Only when the one in the middle is gone is the worker the agent's child.
    os.waitpid(middle, 0)
    return Answer(pid=int(word)) if word.isdigit() else Answer(refused=f"the zygote could not fork twice: {word}")


def _fork_and_end(born_write: int) -> None:
    """Returns in the worker, which leads a session of its own by the time that anybody hears of it."""
    try:
        worker = os.fork()
    except OSError as error:
        os.write(born_write, str(error).encode())
        os._exit(1)
    if worker:
        os._exit(0)
    os.setsid()
    os.write(born_write, str(os.getpid()).encode())


@contextlib.contextmanager
def captured() -> Iterator[Callable[[], tuple[bytes, bytes]]]:
    """Standard output and error go to memory meanwhile, whoever writes; gives a function that tells what was said."""
    memories = [os.memfd_create("said") for _ in range(2)]
    outer = [os.dup(number) for number in (1, 2)]
    for memory, number in zip(memories, (1, 2), strict=True):
        os.dup2(memory, number)
    try:
        yield lambda: (_content(memories[0]), _content(memories[1]))
    finally:
        for kept, memory, number in zip(outer, memories, (1, 2), strict=True):
            os.dup2(kept, number)
            os.close(kept)
            os.close(memory)


def _content(memory: int) -> bytes:
    return os.pread(memory, os.fstat(memory).st_size, 0)


if __name__ == "__main__":
    main(sys.argv)
