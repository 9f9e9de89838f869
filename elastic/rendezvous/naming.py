"""Naming: of two live agents that were given one node name, the later has it, and the earlier must go.

A name key lives by its holder's lease. Who comes takes the key and revokes the lease of the one before: if that one
was dead, nobody waits for it any longer; if it lives, it finds its lease ended and its name taken, and leaves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from elastic.rendezvous.keys import Keys
from elastic.rendezvous.kv import KeyValueStore, Put, modified_at

_log = logging.getLogger(__name__)


class NodeName:
    """One agent's hold on its node's name. `taken` says who has it now, once another took it; empty before."""

    def __init__(
        self,
        store: KeyValueStore,
        *,
        keys: Keys,
        node: str,
        agent: str,
        on_taken: Callable[[], None] = lambda: None,
    ) -> None:
        self._store, self._node, self._agent, self._on_taken = store, node, agent, on_taken
        self._key = keys.name(node)
        self._held = False
        self.taken = ""

    def claim(self, lease: int) -> None:
        """Take the name, or take it again under a new lease unless another has come meanwhile.

        Raises:
            StoreUnavailable: it is to be tried again.
        """
        while not self.taken:
            entry = self._store.get(self._key)
            holder = entry.value if entry else self._agent
            if self._held and holder != self._agent:
                self.taken = (
                    f"another agent ({holder[:8]}) was started with the node name {self._node}: the later one has it. "
                    "Give each node a name of its own in ELASTIC_NODE"
                )
                self._on_taken()
                return
            revision = entry.mod_revision if entry else 0
            done = self._store.transact([modified_at(self._key, revision)], ops=[Put(self._key, self._agent, lease)])
            if done.succeeded:
                self._held = True
                if entry is not None and holder != self._agent:
                    _log.warning("the node name %s was held by agent %s: it is taken over", self._node, holder[:8])
                    self._store.revoke(entry.lease)
                return
