"""Failpoints: named places where a test may have this process stopped, killed or ended, exactly there.

    ELASTIC_FAILPOINT="checkpoint.7=stop"      stop: SIGSTOP; kill: SIGKILL; exit: os._exit(1)
    ELASTIC_FAILPOINT="checkpoint.7=kill@3"    the third time that it comes by

Unarmed, a place costs one comparison with None. Armed, it fires once in the life of the process.
"""

from __future__ import annotations

import enum
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from elastic.errors import UsageError

FAILPOINT = "ELASTIC_FAILPOINT"


class Action(enum.StrEnum):
    """What happens to the process."""

    STOP = "stop"
    KILL = "kill"
    EXIT = "exit"


@dataclass(kw_only=True)
class Failpoint:
    """What is armed. `passes_left` counts down to the pass that fires."""

    name: str
    action: Action
    passes_left: int = 1

    def passed(self, name: str) -> bool:
        """Whether this pass is the one."""
        if name != self.name:
            return False
        self.passes_left -= 1
        return self.passes_left == 0


def parse(text: str) -> Failpoint:
    """Read `name=action[@pass]`.

    Raises:
        UsageError: it is not of that form.
    """
    name, _, rest = text.partition("=")
    action, _, passes = rest.partition("@")
    try:
        return Failpoint(name=name, action=Action(action), passes_left=int(passes or 1))
    except ValueError as error:
        actions = ", ".join(Action)
        raise UsageError(f"{FAILPOINT}={text!r} is not name=action[@pass] with an action of {actions}") from error


def armed(environ: Mapping[str, str]) -> Failpoint | None:
    """What the environment arms, if anything."""
    text = environ.get(FAILPOINT)
    return parse(text) if text else None


def failpoint(name: str) -> None:
    """A place where a test may interfere. Costs nothing where nothing is armed."""
    if _ARMED is not None and _ARMED.passed(name):
        _fire(_ARMED.action)


def _fire(action: Action) -> None:
    if action is Action.EXIT:
        os._exit(1)
    # To this process, not to this thread: all of it stops, as when a machine is paused.
    os.kill(os.getpid(), signal.SIGSTOP if action is Action.STOP else signal.SIGKILL)


_ARMED = armed(os.environ)
"""Read once, when the process starts: whoever arms a failpoint starts the process."""
