"""Plug-in: makes `--rdzv_backend=etcd` ours. torchrun loads it from the entry point group `torchrun.handlers`.

Workers load it too, while torch's rendezvous package is half imported: nothing heavy may be imported at the top.
torch refuses to register a second creator of one name, and only logs that it did; so the creator is replaced where
torch keeps it, a private place that is checked before it is relied on.
"""

from __future__ import annotations

import gc
import importlib
import logging
from collections.abc import Callable, MutableMapping
from typing import Any

from elastic.errors import UsageError

_log = logging.getLogger(__name__)
_NAME = "etcd"


def register() -> Callable[[Any], Any]:
    """Called by torch with no arguments; what it returns is registered under the entry point's own name too."""
    creators = _creators()
    if creators is None:
        _log.error("%s", _MOVED)
    else:
        creators[_NAME] = create_handler
    return create_handler


def create_handler(parameters: Any) -> Any:
    """Build the rendezvous handler, and with it our agent. `parameters`: torch's RendezvousParameters.

    Raises:
        UsageError: torch keeps its creators elsewhere than this version knows.
    """
    creators = _creators()
    if creators is None or creators.get(_NAME) is not create_handler:
        raise UsageError(_MOVED)
    return _entry().create(parameters)


def _entry() -> Any:
    """By name: torchrun enters here, at the bottom, and what it wants is built on top."""
    collects = gc.isenabled()
    # All that is imported stays, and a pass through what torch has brought takes as long as half of these imports.
    gc.disable()
    try:
        return importlib.import_module("elastic.launch.entry")
    finally:
        if collects:
            gc.enable()


_MOVED = (
    "this version of torch keeps its rendezvous creators where elastic does not find them, so that "
    "--rdzv_backend=etcd would silently be torch's own, which speaks API v2 only; "
    "use a version of torch that this version of elastic was tested with (see its README)"
)


def _creators() -> MutableMapping[str, Callable[[Any], Any]] | None:
    api = importlib.import_module("torch.distributed.elastic.rendezvous.api")
    found = getattr(getattr(api, "rendezvous_handler_registry", None), "_registry", None)
    return found if isinstance(found, dict) and _NAME in found else None
