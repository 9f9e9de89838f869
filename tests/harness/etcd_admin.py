"""What an administrator does to an etcd, through the product's own link: users, roles, compaction, who leads."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from etcd3.etcdrpc.auth_pb2 import Permission

from elastic.local.etcd import EtcdServer
from elastic.rendezvous.etcd_link import EtcdLink
from elastic.rendezvous.options import RendezvousOptions


def options(*endpoints: str, **more: Any) -> RendezvousOptions:
    """Options of a job that nobody runs, to reach these endpoints with."""
    return RendezvousOptions(**{"job_id": "admin", "min_nodes": 1, "max_nodes": 1, "endpoints": endpoints} | more)


@contextlib.contextmanager
def link(*endpoints: str, **more: Any) -> Iterator[EtcdLink]:
    """A link of one's own, closed at the end."""
    opened = EtcdLink(options(*endpoints, **more))
    try:
        yield opened
    finally:
        opened.close()


@dataclass(frozen=True, kw_only=True)
class User:
    """A user who may read and write what begins with `prefix`, or only read it, and nothing else."""

    name: str
    password: str
    prefix: str
    reads_only: bool = False


def enable_users(endpoint: str, *, root_password: str, users: tuple[User, ...] = (), **reach: Any) -> None:
    """Create root and the users, each with a role of the least rights, and switch authentication on."""
    with link(endpoint, **reach) as admin:
        rpc = admin.rpc
        admin.call("Auth", "UserAdd", rpc.AuthUserAddRequest(name="root", password=root_password))
        admin.call("Auth", "RoleAdd", rpc.AuthRoleAddRequest(name="root"))
        admin.call("Auth", "UserGrantRole", rpc.AuthUserGrantRoleRequest(user="root", role="root"))
        for user in users:
            start = user.prefix.encode()
            end = start[:-1] + bytes([start[-1] + 1])
            right = Permission.READ if user.reads_only else Permission.READWRITE
            allowed = Permission(permType=right, key=start, range_end=end)
            admin.call("Auth", "UserAdd", rpc.AuthUserAddRequest(name=user.name, password=user.password))
            admin.call("Auth", "RoleAdd", rpc.AuthRoleAddRequest(name=user.name))
            grant = rpc.AuthRoleGrantPermissionRequest(name=user.name, perm=allowed)
            admin.call("Auth", "RoleGrantPermission", grant)
            admin.call("Auth", "UserGrantRole", rpc.AuthUserGrantRoleRequest(user=user.name, role=user.name))
        admin.call("Auth", "AuthEnable", rpc.AuthEnableRequest())


def compact(endpoint: str, **reach: Any) -> int:
    """Make etcd forget all that was; the revision up to which it did."""
    with link(endpoint, **reach) as admin:
        revision: int = admin.call("KV", "Range", admin.rpc.RangeRequest(key=b"/")).header.revision
        admin.call("KV", "Compact", admin.rpc.CompactionRequest(revision=revision, physical=True))
        return revision


def leader(*members: EtcdServer) -> EtcdServer:
    """The one of these members that leads."""
    for member in members:
        with link(member.endpoint) as admin:
            status = admin.call("Maintenance", "Status", admin.rpc.StatusRequest())
            if status.leader == status.header.member_id:
                return member
    raise AssertionError("none of the members says that it leads")


def end_lease(endpoint: str, *, node: str, **reach: Any) -> None:
    """End the lease of the agent of this node, as when it has run out: its keys are gone."""
    with link(endpoint, **reach) as admin:
        admin.call("Lease", "LeaseRevoke", admin.rpc.LeaseRevokeRequest(ID=_leases(admin)[node]))


def leases(*endpoints: str, **reach: Any) -> dict[str, int]:
    """The lease of each node's agent that has its member key."""
    with link(*endpoints, **reach) as admin:
        return _leases(admin)


def _leases(admin: EtcdLink) -> dict[str, int]:
    found = admin.call("KV", "Range", admin.rpc.RangeRequest(key=b"\0", range_end=b"\0"))
    return {json.loads(item.value)["node"]: item.lease for item in found.kvs if b"/members/" in item.key}


def mark(*endpoints: str, **reach: Any) -> str:
    """Write a key that nobody else writes, and return it: where it is gone, data was lost."""
    with link(*endpoints, **reach) as admin:
        admin.call("KV", "Put", admin.rpc.PutRequest(key=b"/mark", value=b"here"))
    return "/mark"


def keys(*endpoints: str, **reach: Any) -> dict[str, str]:
    """Every key with its value."""
    with link(*endpoints, **reach) as admin:
        found = admin.call("KV", "Range", admin.rpc.RangeRequest(key=b"\0", range_end=b"\0"))
        return {item.key.decode(): item.value.decode() for item in found.kvs}
