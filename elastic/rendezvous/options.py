"""Options: what the rendezvous may be told, with units and defaults."""

from __future__ import annotations

from dataclasses import dataclass

from elastic.rendezvous.view import Limits

# The leader is the more patient one: an agent ends its own workers at the limit, which needs no store.
_LONGER_S = 30.0


@dataclass(frozen=True, kw_only=True)
class RendezvousOptions:
    """Everything that a coordinator and its store need to know.

    endpoints: `host:port` each. ttl_s: how long an agent that says nothing keeps its keys; etcd grants 2 s at least.
    join_timeout_s: for min nodes to come. connect_timeout_s: for the store to answer at the start.
    call_timeout_s: for one request, all endpoints together. suspect_s: how long an agent that waits trusts a leader
    that does nothing. unconfirmed_limit_s: how long workers may go on while the lease is not certain.
    """

    job_id: str
    min_nodes: int
    max_nodes: int
    endpoints: tuple[str, ...] = ("127.0.0.1:2379",)
    prefix: str = "/elastic/jobs"
    local_address: str | None = None
    secure: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    user: str | None = None
    password_file: str | None = None
    ttl_s: int = 5
    call_timeout_s: float = 5.0
    connect_timeout_s: float = 20.0
    join_timeout_s: float = 900.0
    first_wait_s: float = 3.0
    late_wait_s: float = 5.0
    planned_wait_s: float = 120.0
    suspect_s: float = 0.5
    unconfirmed_limit_s: float = 300.0
    no_progress_limit: int = 3

    @property
    def limits(self) -> Limits:
        """What the leader's machine goes by."""
        return Limits(
            min_nodes=self.min_nodes,
            max_nodes=self.max_nodes,
            first_wait_s=self.first_wait_s,
            late_wait_s=self.late_wait_s,
            planned_wait_s=self.planned_wait_s,
            unconfirmed_s=self.unconfirmed_limit_s + _LONGER_S,
            no_progress_limit=self.no_progress_limit,
        )
