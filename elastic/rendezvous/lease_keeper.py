"""Lease keeper: renews an agent's lease from a small process of its own, which no stall of the agent reaches.

A thread of the agent renews it too, but whatever holds Python's interpreter lock in the agent for longer than the
lease (an import, a C extension) stops that thread. The keeper has no torch and nothing to do but this. It must not
keep a lease for an agent that is gone or stopped: it ends with the agent, and does not renew while the agent is
stopped (SIGSTOP), nor for one that has not moved for a minute.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from elastic.clock import SYSTEM_CLOCK, Clock
from elastic.errors import StoreError
from elastic.lease import KEEPER, LeasePage, certain_until_s
from elastic.rendezvous.etcd import EtcdStore
from elastic.rendezvous.options import RendezvousOptions

logger = logging.getLogger(__name__)

STALLED_S = 60.0
"""An agent that has not moved for so long is taken for dead."""
_RETRY_S = 0.3
_END_S = 2.0


class KeeperProcess:
    """The agent's handle on its keeper. For one thread."""

    def __init__(self, options: RendezvousOptions, *, page: LeasePage, environ: Mapping[str, str]) -> None:
        """`environ`: for the process, as it is now. Were it to inherit the agent's as it is when it is started, another
        thread that sets a variable meanwhile could move what exec reads (EFAULT).
        """
        self._options, self._page, self._environ = options, page, dict(environ)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The keeper's, once it was started."""
        return self._process.pid if self._process else None

    def keep(self, lease: int) -> None:
        """See to this lease from now on; starts the process if it is not there. Also says that the agent moves."""
        if self._process is None or self._process.poll() is not None:
            self.stop()
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "elastic.rendezvous.lease_keeper"],
                    env=self._environ,
                    stdin=subprocess.PIPE,
                    start_new_session=True,
                )
            except OSError as error:
                logger.warning("the lease keeper cannot be started, and will be later: %s", error)
                return
            # Through a pipe, not the command line: what a process was told is for everyone to see.
            told = {"options": dataclasses.asdict(self._options), "page": str(self._page.path), "agent": os.getpid()}
            self._send(told)
        self._send({"lease": lease})

    def stop(self) -> None:
        """End it; the lease is not renewed by it any more."""
        if self._process is None:
            return
        assert self._process.stdin is not None  # it was asked for
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _send(self, message: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        # One that has died is found and replaced at the next call.
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()


class Orders:
    """What the agent says, line by line. `lease` is 0 where there is none to keep."""

    def __init__(self, fd: int, *, clock: Clock) -> None:
        self._fd, self._clock = fd, clock
        self._rest = b""
        self.lease = 0
        self.ended = False
        self.heard_s = clock.monotonic_s()

    def wait(self, limit_s: float) -> None:
        """Take in what comes within the limit; returns with the first of it."""
        if not select.select([self._fd], [], [], limit_s)[0]:
            return
        data = os.read(self._fd, 65536)
        self.ended = not data
        self.heard_s = self._clock.monotonic_s()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.lease = json.loads(line).get("lease", self.lease)

    def wait_out(self, limit_s: float) -> None:
        """Take in what comes until the limit, or until there is another lease or the agent has hung up.

        It says with each renewal of its own that it moves: to renew at that, too, would double the requests.
        """
        lease, until_s = self.lease, self._clock.monotonic_s() + limit_s
        while not self.ended and self.lease == lease and (left_s := until_s - self._clock.monotonic_s()) > 0:
            self.wait(left_s)


def moves(agent: int, *, heard_s: float, now_s: float) -> bool:
    """Whether the agent is there, not stopped, and was heard of within the last minute."""
    try:
        # After the last parenthesis, since a command's name may hold anything.
        state = Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "TtZX" and now_s < heard_s + STALLED_S


def keep(store: EtcdStore, *, page: LeasePage, agent: int, orders: Orders, pause_s: float, clock: Clock) -> None:
    """Renew until the agent is gone. `pause_s`: from one renewal to the next."""
    while not orders.ended and os.getppid() == agent:
        wait_s = pause_s
        sent_s = clock.monotonic_s()
        if orders.lease and moves(agent, heard_s=orders.heard_s, now_s=sent_s):
            try:
                granted_s = store.keep_alive(orders.lease)
                if granted_s > 0:
                    page.extend(KEEPER, until_s=certain_until_s(sent_s=sent_s, granted_s=granted_s))
                else:
                    page.end()
                    orders.lease = 0
            except StoreError:
                wait_s = _RETRY_S
        orders.wait_out(wait_s)


def main() -> None:
    """The process: reads who and what from standard input, and ends with it."""
    logging.getLogger("elastic").setLevel(logging.ERROR)  # the agent says the same already
    first = b""
    while not first.endswith(b"\n"):
        if not (byte := os.read(0, 1)):
            return
        first += byte
    told = json.loads(first)
    options = RendezvousOptions(**told["options"] | {"endpoints": tuple(told["options"]["endpoints"])})
    store = EtcdStore(options)
    orders = Orders(0, clock=SYSTEM_CLOCK)
    page = LeasePage(Path(told["page"]))
    keep(store, page=page, agent=told["agent"], orders=orders, pause_s=options.ttl_s / 3, clock=SYSTEM_CLOCK)
    store.close()


if __name__ == "__main__":
    main()
