"""Ready workers: an agent's end of its zygote. Starts it, has workers forked, and starts it anew when it dies.

Where a worker cannot be forked it is started as a new Python, as torchrun does it, and a person is told once why.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from elastic.clock import Clock
from elastic.events import Event, Notice
from elastic.launch.forked import ForkedWorker
from elastic.launch.order import GO, LONGEST_ANSWER_BYTES, ROOM, Answer, Cold, Order, Program, program_of
from elastic.launch.processes import WakePipe
from elastic.lifetime import adopting

logger = logging.getLogger(__name__)

LAUNCH_S = 30.0
"""To start a process. Loaded machines take seconds; who asks earlier than it is there would start a new Python."""
END_S = 1.0
"""To end, for one that hung up."""
READY_S = 60.0
"""A zygote that takes longer than this to import everything is given up: a worker would take as long."""
FORK_S = 10.0
"""A zygote that has not forked after so long is stuck, and killed."""
MOST_DEATHS = 5
"""Early deaths in a row after which there is no further zygote."""
STEADY_S = 60.0
"""One that lived for so long was in order: the next one is started at once."""
_ROOM_BYTES = 4096
"""For the variables that workers have more than their zygote."""
_ZYGOTE = str(Path(__file__).with_name("zygote.py"))


def pause_s(deaths: int) -> float:
    """How long to wait before the next start, after so many early deaths in a row."""
    return 0.0 if deaths <= 1 else 0.5 * 2.0**deaths


class Stage(enum.Enum):
    """How far a zygote is."""

    IMPORTING = "importing"
    READY = "ready"
    OVER = "over"
    """Dead, stuck or unable: no worker comes from it any more."""


@dataclass
class Zygote:
    """One zygote process and the line to it."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    started_s: float
    stage: Stage = Stage.IMPORTING

    def end(self) -> None:
        """Kill it and hang up."""
        self.stage = Stage.OVER
        self.process.kill()
        self.control.close()


class ReadyWorkers:
    """One for each agent. `start` early; `fork` from the main thread; `stop` last."""

    def __init__(self, *, module: str, command_bytes: int, environ: Mapping[str, str], clock: Clock) -> None:
        """What is known now of the workers.

        Args:
            module: the job's; empty where it is not known.
            command_bytes: length of their command line.
            environ: their variables.
        """
        self._module, self._command_bytes, self._environ, self._clock = module, command_bytes, dict(environ), clock
        self._lock = threading.Lock()
        """Of the zygote in use: held by the main thread while it talks to it, by the other one to replace it."""
        self._zygote: Zygote | None = None
        self._refused = ""
        self._told: set[str] = set()
        self._launched = threading.Event()
        self._stopping = threading.Event()
        self._stop = WakePipe()
        self._thread = threading.Thread(target=self._keep, name="elastic-zygote", daemon=True)
        self._emit: Callable[[Event], None] = lambda event: None
        self._wake: WakePipe | None = None
        self._interrupted: Callable[[], bool] = lambda: False

    def start(self) -> None:
        """Begin to get ready, in a process of its own; returns when there is one."""
        self._thread.start()
        self._launched.wait(LAUNCH_S)

    def attach(self, *, emit: Callable[[Event], None], wake: WakePipe, interrupted: Callable[[], bool]) -> None:
        """Where to tell of workers that are not forked, and what ends a wait for the zygote early."""
        self._emit, self._wake, self._interrupted = emit, wake, interrupted

    def stop(self) -> None:
        """End the zygote. Workers are left alone."""
        self._stopping.set()
        self._stop.wake()
        if self._thread.ident is not None:
            self._thread.join()
        self._stop.close()

    def wait(self) -> None:
        """Wait until workers can be forked, or never will be. A wake-up cuts it short if `interrupted` says so."""
        with self._lock:
            if self._zygote is not None and not self._refused:
                self._is_ready(self._zygote)

    def fork(self, command: Sequence[str], environ: Mapping[str, str], files: Sequence[int]) -> ForkedWorker | None:
        """Have a worker forked; None where it must be started as a new Python. `files`: standard input, output, error.

        Waits for a zygote that is still importing: a new Python would have to import the same.
        """
        program = program_of(command, python=sys.executable)
        with self._lock:
            found = self._from_zygote(command, program, environ, files)
        if isinstance(found, ForkedWorker):
            return found
        logger.debug("a worker is started as a new Python: %s", found.reason)
        if found.reason not in self._told and not self._stopping.is_set():
            self._told.add(found.reason)
            self._emit(Notice(text=f"workers start as new Pythons, which takes seconds: {found.reason}"))
        return None

    def _from_zygote(
        self, command: Sequence[str], program: Program | Cold, environ: Mapping[str, str], files: Sequence[int]
    ) -> ForkedWorker | Cold:
        if isinstance(program, Cold):
            return program
        if self._refused:
            return Cold(reason=self._refused)
        zygote = self._zygote
        if zygote is None or not self._is_ready(zygote):
            return Cold(reason=self._refused or "there is no zygote just now")
        try:
            order = Order(command=tuple(command), program=program, environ=dict(environ), cwd=os.getcwd())
            return self._order(zygote, order, files)
        except OSError as error:
            zygote.end()
            return Cold(reason=f"the zygote cannot be reached ({error})")

    def _is_ready(self, zygote: Zygote) -> bool:
        """Wait until it is, or will not be."""
        until_s = zygote.started_s + READY_S
        while zygote.stage is Stage.IMPORTING:
            left_s = until_s - self._clock.monotonic_s()
            if left_s <= 0:
                zygote.end()
                self._refused = f"importing what they need takes longer than {READY_S:.0f} s"
            elif self._hears(zygote, left_s):
                answer = self._receive(zygote)
                if answer is None:
                    self._ended(zygote)
                else:
                    zygote.stage = Stage.OVER if answer.refused else Stage.READY
                    self._refused = answer.refused
            elif self._interrupted():
                return False
        return zygote.stage is Stage.READY

    def _hears(self, zygote: Zygote, limit_s: float) -> bool:
        """Wait for its word. False at the limit, and when somebody wakes the main thread."""
        watched = [zygote.control.fileno(), *([self._wake.fd] if self._wake else [])]
        ready = select.select(watched, [], [], limit_s)[0]
        if self._wake is not None and self._wake.fd in ready:
            self._wake.drain()  # whoever waits next looks at everything before
        return zygote.control.fileno() in ready

    def _receive(self, zygote: Zygote) -> Answer | None:
        try:
            data = zygote.control.recv(LONGEST_ANSWER_BYTES)
        except ConnectionResetError:
            return None
        return Answer.decode(data) if data else None

    def _ended(self, zygote: Zygote) -> int:
        """It hung up. Returns its exit code; one that it gave itself means that no other zygote would do better."""
        try:
            exit_code = zygote.process.wait(END_S)
        except subprocess.TimeoutExpired:
            zygote.process.kill()
            exit_code = zygote.process.wait()
        if zygote.stage is Stage.IMPORTING and exit_code > 0:
            self._refused = f"importing what they need ended the process with exit code {exit_code}"
        zygote.end()
        return exit_code

    def _order(self, zygote: Zygote, order: Order, files: Sequence[int]) -> ForkedWorker | Cold:
        go_read, go_write = os.pipe2(os.O_CLOEXEC)
        memory = os.memfd_create("order", os.MFD_CLOEXEC)
        try:
            _fill(memory, order.encode())
            with adopting():
                socket.send_fds(zygote.control, [b"fork"], [memory, go_read, *files])
                answered = select.select([zygote.control], [], [], FORK_S)[0]
                answer = self._receive(zygote) if answered else None
            if answer is None:
                zygote.end()
                return Cold(reason="the zygote died while it forked" if answered else "the zygote is stuck")
            if answer.refused:
                return Cold(reason=answer.refused)
            # Raises where it is not our child, so that nobody could wait for it.
            os.waitid(os.P_PID, answer.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            with contextlib.suppress(BrokenPipeError):  # it has died already, which is found out as with any worker
                os.write(go_write, GO)
            return ForkedWorker(answer.pid, command=order.command)
        finally:
            for descriptor in (memory, go_read, go_write):
                os.close(descriptor)

    def _keep(self) -> None:
        """The thread: a zygote dies with the thread that started it, so this one lives as long as the agent."""
        deaths = 0
        while not (self._stopping.is_set() or self._refused):
            try:
                zygote = self._launch()
            finally:
                self._launched.set()
            pidfd = os.pidfd_open(zygote.process.pid)
            select.select([pidfd, self._stop.fd], [], [])
            os.close(pidfd)
            with self._lock:
                self._zygote = None
                deaths = 0 if self._clock.monotonic_s() - zygote.started_s > STEADY_S else deaths + 1
                self._bury(zygote, deaths=deaths)
            if not (self._stopping.is_set() or self._refused):
                select.select([self._stop.fd], [], [], pause_s(deaths))

    def _launch(self) -> Zygote:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-u", _ZYGOTE, str(theirs.fileno()), self._module]
        command.append("." * max(0, self._command_bytes - len("\0".join(command).encode())))
        with theirs:
            process = subprocess.Popen(
                command,
                env={**self._environ, ROOM: "." * _ROOM_BYTES},
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a terminal's ^C is not for it
                pass_fds=[theirs.fileno()],
            )
        zygote = Zygote(process=process, control=ours, started_s=self._clock.monotonic_s())
        with self._lock:
            self._zygote = zygote
        return zygote

    def _bury(self, zygote: Zygote, *, deaths: int) -> None:
        """It has ended, or is to end now. Find out whether another one would do better."""
        if self._stopping.is_set():
            zygote.end()
        elif zygote.stage is Stage.IMPORTING and (answer := self._receive(zygote)) is not None:
            self._refused = answer.refused
        exit_code = self._ended(zygote)
        if not (self._refused or self._stopping.is_set()):
            logger.warning("the zygote of this node's workers ended (%d); another one gets ready", exit_code)
            if deaths >= MOST_DEATHS:
                self._refused = f"the zygote died {deaths} times in a row"


def _fill(memory: int, data: bytes) -> None:
    while data:
        data = data[os.write(memory, data) :]
