"""Options: what the rendezvous may be told, with units and defaults."""

from __future__ import annotations

from dataclasses import dataclass

from elastic.rendezvous.view import Limits


@dataclass(frozen=True, kw_only=True)
class RendezvousOptions(Limits):
    """Everything that a coordinator and its store need to know, what the leader goes by among it.

    endpoints: `host:port` each. ttl_s: how long an agent that says nothing keeps its keys; etcd grants 2 s at least.
    join_timeout_s: for min nodes to come. connect_timeout_s: for the store to answer at the start.
    call_timeout_s: for one request, all endpoints together. suspect_s: how long an agent that waits trusts a leader
    that does nothing.
    """

    job_id: str
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
    suspect_s: float = 0.5
