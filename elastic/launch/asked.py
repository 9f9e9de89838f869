"""Asked: what an agent answers its workers: the commit record, and whether an iteration may be the next."""

from __future__ import annotations

import json

from elastic.clock import Clock
from elastic.launch.tenure import Tenure
from elastic.link import Answer
from elastic.rendezvous.coordinator import Coordinator


class Asked:
    """`answer` may take as long as etcd does; it is called from the worker server's threads."""

    def __init__(self, coordinator: Coordinator, *, tenure: Tenure | None, clock: Clock) -> None:
        """`tenure`: None where each node has a save path of its own."""
        self._coordinator, self._tenure, self._clock = coordinator, tenure, clock

    def answer(self, what: str, value: str | None) -> Answer:
        """What a worker asked for. Never raises but for the store (StoreError)."""
        if what == "record":
            return Answer(granted=True, reason="", value=self._coordinator.commit_record())
        if what == "commit" and value is not None:
            return self._commit(value)
        return Answer(granted=False, reason=f"the agent does not know the request {what!r}; versions differ")

    def _commit(self, value: str) -> Answer:
        if self._clock.monotonic_s() > self._coordinator.lease_valid_until_s:
            # At once: waiting for a store that is away would hold up the training of all.
            return Answer(granted=False, reason="etcd does not confirm this agent; nothing counts until it does")
        if self._tenure is not None and (lost := self._tenure.lost()):
            return Answer(granted=False, reason=lost, stale=True)
        verdict = self._coordinator.commit(value, generation=_generation_of(value))
        return Answer(granted=verdict.granted, reason=verdict.reason, stale=verdict.stale)


def _generation_of(record: str) -> int | None:
    """The generation that a record is written by; None where it says none."""
    said = json.loads(record)
    generation = said.get("generation") if isinstance(said, dict) else None
    return generation if isinstance(generation, int) else None
