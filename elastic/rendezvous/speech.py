"""Speech: what an agent's version means to others, as a text that must be equal for two to be in one world. Pure.

PROTOCOL grows when agents of two versions could misunderstand each other. What workers say to each other is torch's,
whose releases promise nothing to one another.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping

from elastic.errors import VersionsDiffer

PROTOCOL = 3
"""Of keys, and of what workers say to each other beside torch."""

SPEAKS = "ELASTIC_SPEAKS"
"""The variable in which an agent tells its workers what it speaks."""

REMEDY = "install the same version on all nodes, or end the job and start it anew with the other version"


def spoken(torch_version: str) -> str:
    """What an agent with this torch speaks. A patch release is no other language."""
    return f"protocol {PROTOCOL}, torch {'.'.join(torch_version.split('.')[:2])}"


def agree(environ: Mapping[str, str], *, torch_version: str) -> None:
    """See whether this worker understands the agent that started it; one without an agent does.

    Raises:
        VersionsDiffer: it was started by an older or newer one, whose installation has been replaced meanwhile.
    """
    agent, own = environ.get(SPEAKS, ""), spoken(torch_version)
    if agent and agent != own:
        raise VersionsDiffer(f"this worker speaks {own!r}, its agent {agent!r}: start the agent anew, too")


def complain(text: str, *, what: str) -> None:
    """Tell of a key that cannot be read whether another version wrote it.

    Raises:
        VersionsDiffer: it did.
    """
    told = ""
    with contextlib.suppress(ValueError, AttributeError):
        told = str(json.loads(text).get("speaks", ""))
    if told and told.partition(",")[0] != f"protocol {PROTOCOL}":
        raise VersionsDiffer(f"the {what} key was written by an agent that speaks {told!r}: {REMEDY}")
