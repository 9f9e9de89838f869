"""Targets: where Prometheus finds the agents, in the form of its file discovery. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Agent:
    """An agent as its member key tells of it: `exporter` is where it listens, `address` where others reach it."""

    job_id: str
    node: str
    address: str
    exporter: str


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where to scrape an agent; where that cannot be, `problem` says why and what to do."""

    agent: Agent
    place: str
    secure: bool = False
    problem: str = ""

    def to_plain(self) -> Mapping[str, object]:
        """One group of a file of `file_sd_configs`."""
        scheme = {"__scheme__": "https"} if self.secure else {}
        labels = {"job_id": self.agent.job_id, "node": self.agent.node} | scheme
        return {"targets": [self.place], "labels": labels}


def targets(agents: Iterable[Agent]) -> list[Target]:
    """One for each agent, in a stable order, so that an unchanged job makes an unchanged file."""
    ordered = sorted(agents, key=lambda agent: (agent.job_id, agent.node, agent.exporter))
    return [_target(agent) for agent in ordered]


def _target(agent: Agent) -> Target:
    secure = agent.exporter.startswith("https://")
    host, _, port = agent.exporter.removeprefix("https://").rpartition(":")
    host = host.strip("[]")
    if not host or not port:
        return Target(agent=agent, place="", problem=f"{agent.node} serves no metrics")
    if _is(host, "unspecified"):
        host = agent.address
    elif _is(host, "loopback") and not _is(agent.address, "loopback"):
        remedy = "set metrics.host to 0.0.0.0 (or ::) there"
        return Target(
            agent=agent, place="", problem=f"{agent.node} serves its metrics on {host} only, for itself; {remedy}"
        )
    return Target(agent=agent, place=f"[{host}]:{port}" if ":" in host else f"{host}:{port}", secure=secure)


def _is(host: str, what: str) -> bool:
    if what == "loopback" and host == "localhost":
        return True
    try:
        return bool(getattr(ipaddress.ip_address(host), f"is_{what}"))
    except ValueError:
        return False  # a name
