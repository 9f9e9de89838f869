"""The settings of agents: how they find each other, and how they start their workers. Part of model.py."""

from __future__ import annotations

from dataclasses import dataclass, field

from elastic.config.rules import about


@dataclass(frozen=True, kw_only=True)
class RendezvousSettings:
    """How agents find each other, and how long they wait."""

    ttl_s: float = field(
        default=5.0, metadata=about("a node silent for this long is lost", unit="s", least=1, most=600)
    )
    first_wait_s: float = field(
        default=1.5,
        metadata=about("wait for more nodes at the first start, once the least number is there", unit="s", least=0),
    )
    late_wait_s: float = field(
        default=10.0,
        metadata=about("wait for a node that is alive but late, before going on without it", unit="s", least=0),
    )
    holders_wait_s: float = field(
        default=30.0,
        metadata=about("wait for nodes that hold what was committed, where none that is there does", unit="s", least=0),
    )
    join_timeout_s: float = field(
        default=600.0,
        metadata=about("give up (exit code 75) when too few nodes came for this long", unit="s", above=0),
    )
    connect_timeout_s: float = field(
        default=10.0,
        metadata=about("give up when etcd has not answered for this long at the start", unit="s", above=0),
    )
    unconfirmed_limit_s: float = field(
        default=300.0,
        metadata=about("train on for so long without word from etcd; nothing is committed", unit="s", least=0),
    )


@dataclass(frozen=True, kw_only=True)
class LaunchSettings:
    """How an agent starts its workers."""

    rejoin: bool = field(
        default=True,
        metadata=about("workers keep their process and state when the membership changes; false: they start again"),
    )
    ready_workers: bool = field(
        default=True,
        metadata=about("fork workers from a process that has imported everything; false: each is a new Python"),
    )
    build_ahead_s: float = field(
        default=600.0,
        metadata=about("longest time to build before others at work are asked for a place; 0: none", unit="s", least=0),
    )
    collect_output: bool = field(
        default=True,
        metadata=about(
            "agents print what workers print, with node and rank before each line; false: workers print for themselves"
        ),
    )
    log_bytes: int = field(
        default=64 << 20,
        metadata=about("size of a node's log in save_path/logs; then a new one begins; 0: none", unit="bytes", least=0),
    )
    logs_kept: int = field(default=4, metadata=about("older logs of a node that are kept", least=0, most=1000))
