"""Address: which of this machine's addresses the others should use. Never a guessed name."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from elastic.errors import StoreUnavailable


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`."""
    host, _, port = endpoint.rpartition(":")
    return host.strip("[]"), int(port)


def address_towards(endpoints: Sequence[str]) -> str:
    """The local address of the way to the first endpoint that there is a way to. Sends nothing.

    Raises:
        StoreUnavailable: no name can be resolved, or there is no way to any.
    """
    problems: list[str] = []
    for endpoint in endpoints:
        host, port = split_endpoint(endpoint)
        try:
            for family, _kind, _protocol, _name, place in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
                with socket.socket(family, socket.SOCK_DGRAM) as way:
                    way.connect(place)
                    address: str = way.getsockname()[0]
                    return address
        except OSError as error:
            problems.append(f"{endpoint}: {error.strerror or error}")
    raise StoreUnavailable(
        f"there is no way to etcd ({'; '.join(problems)}); name where it is with --rdzv-endpoint or ETCD_ENDPOINTS"
    )
